"""Reductions along the vector axis: an accumulator of several registers, joined at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.backends.cpu.extrema import PlaceAccumulator
from weft.backends.llvm.builder import Function
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V, const, scalar_type, vector
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


@dataclass
class Accumulator:
    """The state of one reduction inside its loop: a vector for whole steps, a scalar for the rest.

    A sum of floats has a second vector, to which `fold` adds the first from time to time.
    """

    b: Function
    kind: str
    dtype: DType
    lanes: int
    wide: V
    narrow: V
    total: V | None

    @classmethod
    def start(cls, codegen: KernelCodegen, sink: tile.ReduceOp, lanes: int) -> Accumulator:
        b = codegen.b
        dtype = tile.tile_type(sink.value).dtype
        element = scalar_type(dtype)
        combiner = COMBINERS[sink.kind.data]
        identity = combiner.identity(dtype)
        wide, narrow = b.alloca(vector(element, lanes)), b.alloca(element)
        b.store(const(identity, vector(element, lanes)), wide, 1)
        b.store(const(identity, element), narrow, 1)
        total = None
        if sink.kind.data == "sum" and dtype.is_float and lanes > 1:
            total = b.alloca(vector(element, lanes))
            b.store(const(identity, vector(element, lanes)), total, 1)
        return cls(b, sink.kind.data, dtype, lanes, wide, narrow, total)

    def fold(self) -> None:
        """Add what has been summed up lately to the total, and start anew."""
        assert self.total is not None
        self.b.store(self._summed(), self.total, 1)
        self.b.store(const(0, self.wide_type), self.wide, 1)

    def _summed(self) -> V:
        recent = self.b.load(self.wide_type, self.wide, 1)
        if self.total is None:
            return recent
        return emit_function(self.b, "add", [self.b.load(self.wide_type, self.total, 1), recent], self.dtype)

    def add(self, value: V, start: V, lanes: int) -> None:
        b, function = self.b, COMBINERS[self.kind].function
        value = b.splat(value, lanes)
        if lanes == self.lanes and lanes > 1:
            old = b.load(self.wide_type, self.wide, 1)
            b.store(emit_function(b, function, [old, value], self.dtype), self.wide, 1)
            return
        single = horizontal(b, function, value, self.dtype)
        old = b.load(single.type, self.narrow, 1)
        b.store(emit_function(b, function, [old, single], self.dtype), self.narrow, 1)

    @property
    def wide_type(self) -> str:
        return vector(scalar_type(self.dtype), self.lanes)

    def finish(self) -> V:
        b, function = self.b, COMBINERS[self.kind].function
        narrow = b.load(scalar_type(self.dtype), self.narrow, 1)
        if self.lanes == 1:
            return narrow
        wide = horizontal(b, function, self._summed(), self.dtype)
        return emit_function(b, function, [wide, narrow], self.dtype)


def accumulator_of(sink: tile.ReduceOp) -> type[Accumulator] | type[PlaceAccumulator]:
    """What holds the state of a reduction."""
    return PlaceAccumulator if COMBINERS[sink.kind.data].indexed else Accumulator


def horizontal(b: Function, function: str, value: V, dtype: DType) -> V:
    """Combine the lanes of a vector, halving it step by step."""
    while value.lanes > 1:
        half = value.lanes // 2
        type_ = vector(value.element, half)
        halves = [
            b.emit(type_, f"shufflevector {value}, {value.type} poison, {_lanes(range(start, start + half))}")
            for start in (0, half)
        ]
        if half == 1:
            halves = [b.extract(value, lane) for lane in (0, 1)]
        value = emit_function(b, function, halves, dtype)
    return value


def _lanes(lanes: range) -> str:
    return f"<{len(lanes)} x i32> <" + ", ".join(f"i32 {lane}" for lane in lanes) + ">"
