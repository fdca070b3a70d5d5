"""Arguments that lie in each other's memory: a graph that writes to one is only right where they lie as when traced.

Tracing makes a graph pure: what reads an argument gets the value of before, or of after, as the program's text says.
Where a written argument lies in the memory of another one, that is another program. Tracing knows of such arguments if
it sees them, but guards neither that they stay so nor that others do not become so. So calls look at the addresses.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._guards import TracingContext

from weft.config import Config
from weft.diagnostics import warn
from weft.errors import UnsupportedError
from weft.frontends.torch.locations import first_line
from weft.runtime.strides import span

Overlaps: TypeAlias = frozenset[tuple[int, int, int]]
"""Pairs of arguments whose memory overlaps, with the distance of their first elements in bytes."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FEW = 8
"""Arguments that are compared one by one."""


def mutated_arguments(count: int) -> tuple[int, ...] | None:
    """Which of so many arguments the graph that is being traced writes to; None where that cannot be told of each."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return ()
    written = tuple(n for n, info in enumerate(metadata.input_info) if info.mutates_data)
    return written if not written or len(metadata.input_info) == count else None


class OverlapCheck:
    """Whether the arguments of a call lie in each other's memory as they did when the graph was traced.

    A call looks at hundreds of weights: only those that lie elsewhere than in the call before are compared.
    """

    def __init__(self, traced: Sequence[Any], written: Collection[int] | None) -> None:
        self._places = [n for n, value in enumerate(traced) if _has_memory(value)]
        taken = self._places if written is None else written
        self._written = [k for k, place in enumerate(self._places) if place in taken]
        # Sizes that are not in the guards are arguments too; those of parameters are in the guards.
        fixed = all(isinstance(value, torch.Tensor) for value in traced)
        self._loose = [k for k, n in enumerate(self._places) if not fixed and type(traced[n]) is not torch.nn.Parameter]
        self._sizes = [_bytes(traced[place]) for place in self._places]
        self._starts = [traced[place].data_ptr() for place in self._places]
        self._known = _overlaps(self._starts, self._sizes, self._written)

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether the compiled graph is right for these."""
        starts = [arguments[place].data_ptr() for place in self._places]
        sizes = self._sizes
        if self._loose:
            sizes = list(sizes)
            for k in self._loose:
                sizes[k] = _bytes(arguments[self._places[k]])
        if starts == self._starts and sizes == self._sizes:
            return True
        if (self._known or self._may_overlap(starts, sizes)) and _overlaps(starts, sizes, self._written) != self._known:
            return False
        self._starts, self._sizes = starts, sizes
        return True

    def _may_overlap(self, starts: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether an argument that lies elsewhere than before overlaps another, one of them being written."""
        if len(starts) != len(self._starts):
            return True
        lies = zip(starts, sizes, self._starts, self._sizes, strict=True)
        moved = [k for k, (start, size, before, length) in enumerate(lies) if start != before or size != length]
        if len(moved) > _FEW:
            return True
        for k in moved:
            start, stop = starts[k], starts[k] + sizes[k]
            others = range(len(starts)) if k in self._written else self._written
            if any(n != k and starts[n] < stop and start < starts[n] + sizes[n] for n in others):
                return True
        return False


def _has_memory(value: Any) -> bool:
    return type(value) in _PLAIN and value.layout == torch.strided


def _bytes(tensor: torch.Tensor) -> int:
    return span(tensor.shape, tensor.stride()) * tensor.itemsize


def _overlaps(starts: Sequence[int], sizes: Sequence[int], written: Collection[int]) -> Overlaps:
    found: set[tuple[int, int, int]] = set()
    begun: list[int] = []
    for k in sorted((k for k, size in enumerate(sizes) if size), key=starts.__getitem__):
        begun = [other for other in begun if starts[other] + sizes[other] > starts[k]]
        for other in begun:
            if k in written or other in written:
                first, second = min(k, other), max(k, other)
                found.add((first, second, starts[second] - starts[first]))
        begun.append(k)
    return frozenset(found)


_WHY = "its arguments, of which it writes to some, share memory otherwise than when it was traced"
_ADVICE = "compile a function of its own for such calls"


def overlaps_checked(
    compiled: Callable[..., Any],
    module: fx.GraphModule,
    traced: Sequence[Any],
    written: Collection[int] | None,
    config: Config,
) -> Callable[..., Any]:
    """What does as a compiled graph; it runs the captured one where arguments that it writes to lie otherwise."""
    check = OverlapCheck(traced, written)
    line = first_line(module.graph.nodes)

    def call(*arguments: Any) -> Any:
        if check.holds(arguments):
            return compiled(*arguments)
        if config.forbids_fallbacks:
            raise UnsupportedError(f"a graph cannot run compiled: {_WHY}", location=line, hint=_ADVICE)
        if config.fallback == "warn":
            warn("fallback", "a graph runs uncompiled", _WHY, _ADVICE, location=line)
        return module(*arguments)

    return call
