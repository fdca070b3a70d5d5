"""Lets functions of autograd's keep their rules where Dynamo traces what `torch.func` transforms.

Dynamo traces the body of one there, and would give the derivatives of that: another gradient than the user's, without a
word. In what Weft compiles it traces the function and its rules, as those of `weft.func.custom`.
"""

# Dynamo has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._dynamo.variables import ConstantVariable, UserFunctionVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._guards import TracingContext

from weft.config import Config
from weft.diagnostics import calling_line, warn
from weft.errors import UnsupportedError
from weft.frontends.torch.locations import is_of_torch
from weft.frontends.torch.report import HOW_TO_DECIDE
from weft.frontends.torch.transforms.dynamo_levels import asked_options, is_traced_for, traced_under_transforms

_Function: Any = torch.autograd.Function
_DERIVATIVES = (TransformType.Grad, TransformType.Jvp)
_WHY = (
    "it draws random numbers, tells None from zeros, fails on tensors without numbers, "
    "or takes what is no tensor, number or text"
)


@cache
def trace_autograd_functions(backend: Callable[..., Any]) -> None:
    """Let Dynamo trace the rules of autograd's functions in what this backend compiles."""
    functions: Any = AutogradFunctionVariable
    call_apply = functions.call_apply

    def apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not is_traced_for(tx, backend) or not _needs_rules(self.fn_cls):
            return call_apply(self, tx, args, kwargs)
        # What knows rules stands above: it is loaded where there are some.
        rules = importlib.import_module("weft.frontends.torch.func.autograd_functions")
        placed = _placed(self, args, kwargs)
        values = None if placed is None else _values(placed)
        key = None if values is None else rules.traced_key(self.fn_cls, values)
        if placed is None or key is None:
            if _is_differentiated() and rules.is_known(self.fn_cls):
                _tell(self.fn_cls, tx)
            return call_apply(self, tx, args, kwargs)
        called: Any = UserFunctionVariable(rules.apply_traced)
        return tx.inline_user_function_return(called, [ConstantVariable.create(key), *placed], {})

    functions.call_apply = apply


def _needs_rules(cls: Any) -> bool:
    """Whether Dynamo would not take them: while functions are transformed, and where tangents have a rule."""
    return _is_transformed() or cls.jvp is not _Function.jvp


def _is_transformed() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None or traced_under_transforms()


def _is_differentiated() -> bool:
    levels = retrieve_all_functorch_interpreters()
    return traced_under_transforms() or any(each.key() in _DERIVATIVES for each in levels)


def _tell(cls: Any, tx: Any) -> None:
    """Tell that the derivatives are those of the body, or raise that where it may not be."""
    config = Config.from_options(**asked_options(tx))
    own = [frame for frame in TracingContext.extract_stack() if not is_of_torch(frame.filename)]
    line = f"{own[-1].filename}:{own[-1].lineno}" if own else calling_line()
    what = f"derivatives of {cls.__name__} are those of its forward, not its rules"
    if config.forbids_fallbacks:
        raise UnsupportedError(f"{what}, {_WHY}", location=line, hint=HOW_TO_DECIDE)
    if config.fallback == "warn":
        warn("fallback", what, _WHY, HOW_TO_DECIDE, location=line)


def _placed(self: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """Arguments at their places, with defaults where `setup_context` sees them; None where some have none."""
    found = self._resolve_kwargs(list(args), kwargs) if kwargs else list(args)
    if found is None or self.fn_cls.setup_context is _Function.setup_context:
        return found
    forward = self.fn_cls.forward
    lacking = forward.__code__.co_argcount - len(found)
    defaults: tuple[Any, ...] = forward.__defaults__ or ()
    if not 0 < lacking <= len(defaults):
        return found
    rest = defaults[-lacking:]
    if not all(map(ConstantVariable.is_literal, rest)):
        return None
    return [*found, *map(ConstantVariable.create, rest)]


def _values(args: Any) -> list[Any] | None:
    """Examples of tensors and of sizes among arguments, and the others as they are; None where Dynamo knows none."""
    found: list[Any] = []
    for each in args:
        if each.is_tensor():
            found.append(each.as_proxy().node.meta["example_value"])
        elif isinstance(each, SymNodeVariable):
            found.append(each.sym_num.node.hint)
        elif each.is_python_constant():
            found.append(each.as_python_constant())
        else:
            return None
    return found
