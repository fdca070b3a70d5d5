"""The identity backend, and what a backend under test tells of the graphs that it received.

The identity backend is AOTAutograd with the core decompositions and graphs run as they are: what it gets wrong against
eager, no backend can get right. It also shows which ATen targets a program comes down to.
"""

# torch's decompositions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import torch

WHOLE_GRAPH = "the whole graph"  # stands for every target of a graph that was left to torch


class TargetRecord(Protocol):
    """What a backend met while it was recorded, by name (`aten.add.Tensor`)."""

    @property
    def seen(self) -> set[str]: ...  # every call target of every graph it received

    @property
    def opaque(self) -> set[str]: ...  # those it ran as opaque calls or, when strict, refused; or WHOLE_GRAPH


class TargetRecorder(Protocol):
    """`with record_targets() as record`: a strict backend has recorded a graph by the time it refuses it."""

    def __call__(self) -> AbstractContextManager[TargetRecord]: ...


@dataclass(slots=True)
class Targets:
    """A record as simple as can be; without a recorder it stays empty."""

    seen: set[str] = field(default_factory=set[str])
    opaque: set[str] = field(default_factory=set[str])


_identity_records: list[Targets] = []


@contextlib.contextmanager
def record_identity_targets() -> Generator[TargetRecord]:
    """The recorder of the identity backend, to which nothing is opaque."""
    record = Targets()
    _identity_records.append(record)
    try:
        yield record
    finally:
        _identity_records.remove(record)


@cache
def identity_backend() -> Callable[..., Any]:
    """AOTAutograd with the core decompositions, each graph run as it is."""
    from torch._decomp import core_aten_decompositions
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def run_as_is(graph_module: Any, _: Any) -> Any:
        for record in _identity_records:
            record.seen |= {str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"}
        return make_boxed_func(graph_module.forward)

    table = dict(core_aten_decompositions())
    # Its second result is not the log-sum-exp that the backward wants: gradients of attention would be wrong.
    del table[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
    return aot_autograd(
        fw_compiler=run_as_is, bw_compiler=run_as_is, inference_compiler=run_as_is, decompositions=table
    )


def resolve(name: str) -> Any:
    """The attribute that "package.module:attribute" names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def is_core(target: str) -> bool:
    """Whether a target's name is that of a core ATen overload."""
    namespace, _, rest = target.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None) if rest else None
    return torch.Tag.core in getattr(found, "tags", ())
