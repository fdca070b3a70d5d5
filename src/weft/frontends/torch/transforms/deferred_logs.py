"""Lets calls of loggers stand in what Weft compiles: Dynamo breaks the graph at each, and traces all before it twice.

    logits = model(x)                        %logits, %loss = graph(%x)
    logger.warning("no loss is chosen")  →   logger.warning("no loss is chosen")
    loss = cross_entropy(logits, y)

A message of constants is logged there, in every call that the graph runs through. The logger's own method is called,
so levels, handlers, and methods that speak once (as transformers' `warning_once`) do what they do. Bodies that are
traced by themselves (branches, checkpoints, backward functions) keep theirs: they may run later, or not at all.
"""

# Dynamo has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.misc import DebuggingVariable, LoggingLoggerVariable

from weft.frontends.torch.transforms.dynamo_levels import is_traced_for

_METHODS = {"debug", "info", "warning", "warn", "log"}
"""Methods of a logger that say something and return nothing; errors are said before what fails."""
_ONCE = "_once"
"""How libraries call what they add to loggers for messages that are said once."""


@cache
def defer_logs(backend: Callable[..., Any]) -> None:
    """Let Dynamo put calls of loggers behind the graph in what this backend compiles."""
    loggers: Any = LoggingLoggerVariable
    call_method = loggers.call_method

    def method(self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs or not _says(name) or not is_traced_for(tx, backend) or _is_left_to_torch(self, tx, name):
            return call_method(self, tx, name, args, kwargs)
        said = [each.realize() for each in args]
        if not all(isinstance(each, ConstantVariable) for each in said):
            return call_method(self, tx, name, args, kwargs)
        called = DebuggingVariable(getattr(self.value, name), source=AttrSource(self.source, name))
        tx.output.root_tx.debug_locals.append((called, said))
        return ConstantVariable.create(None)

    loggers.call_method = method


def _says(name: str) -> bool:
    return name.removesuffix(_ONCE) in _METHODS


def _is_left_to_torch(logger: Any, tx: Any, name: str) -> bool:
    """Whether torch is told what to do with the call, or would not carry it out behind the graph."""
    dynamo: Any = torch._dynamo.config
    method = getattr(logger.value, name, None)
    ignored = getattr(dynamo, "ignore_logger_methods", ())
    told = method is None or method in ignored or getattr(method, "__func__", None) in ignored
    inner = getattr(tx.output.current_tracer, "parent", None) is not None  # a body that may run later, or not at all
    return told or inner or tx.export or logger.source is None or getattr(dynamo, "nested_graph_breaks", False)
