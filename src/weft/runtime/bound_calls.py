"""Steps that a framework carries out, read once for known sizes, so that little is left to do in each call.

mm(#0, #1)  on  buffer 3 as 768x8192, buffer 7   →   function([tensor, tensor]), with shapes and strides as numbers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from weft.ir.expr import evaluate
from weft.ir.types import DType
from weft.lower.steps import CallStep, DotStep, Place
from weft.runtime.array_adapter import ArrayAdapter, ArrayT, ForeignCalls
from weft.runtime.program import Binding


@dataclass(frozen=True)
class BoundPlace:
    """A tensor in memory, of known sizes."""

    buffer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class BoundCall(Generic[ArrayT]):
    """What a step takes, what carries it out, and the buffers of what that gives, with their strides."""

    operands: tuple[BoundPlace, ...]
    function: Callable[[list[ArrayT]], Sequence[ArrayT | None]]
    results: tuple[tuple[int, tuple[int, ...]], ...]


def bind_place(place: Place, sizes: Mapping[str, int]) -> BoundPlace:
    """A tensor in memory where sizes are known."""
    shape, strides = (tuple(evaluate(n, sizes) for n in each) for each in (place.tensor.shape, place.layout.strides))
    return BoundPlace(place.buffer, place.tensor.dtype, shape, strides, evaluate(place.layout.offset, sizes))


def bind_call(
    step: CallStep | DotStep, binding: Binding, calls: ForeignCalls[ArrayT], arrays: ArrayAdapter[ArrayT]
) -> BoundCall[ArrayT]:
    """A step for the sizes of a binding."""
    sizes = binding.sizes
    if isinstance(step, DotStep):
        accumulates = step.accumulates

        def multiply(operands: list[ArrayT]) -> tuple[ArrayT, ...]:
            arrays.multiply(*operands, accumulates=accumulates)
            return ()

        return BoundCall(tuple(bind_place(place, sizes) for place in (step.a, step.b, step.out)), multiply, ())
    return BoundCall(
        tuple(bind_place(place, sizes) for place in step.operands),
        calls.bound(step.target, step.arguments, sizes),
        tuple((number, binding.strides[number]) for number in step.results),
    )
