"""The place of the first extremum along the vector axis: each lane keeps its own, the best of them is the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from weft.backends.llvm.builder import Function
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V, const, scalar_type, vector
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


@dataclass(frozen=True)
class _Found:
    """Where extrema and their places lie in memory, as many as there are lanes."""

    values: V
    places: V
    lanes: int


@dataclass
class PlaceAccumulator:
    """The state of one `argmax` or `argmin` inside its loop: a vector for whole steps, a scalar for the rest.

    Places are of 32 bits, which tiles never need more of; -1 is that of nothing yet.
    """

    total: ClassVar[None] = None
    b: Function
    kind: str
    dtype: DType
    wide: _Found
    narrow: _Found

    @classmethod
    def start(cls, codegen: KernelCodegen, sink: tile.ReduceOp, lanes: int) -> PlaceAccumulator:
        b, dtype = codegen.b, tile.tile_type(sink.value).dtype
        identity = COMBINERS[sink.kind.data].identity(dtype)
        found: list[_Found] = []
        for count in (lanes, 1):
            type_, places = vector(scalar_type(dtype), count), vector("i32", count)
            each = _Found(b.alloca(type_), b.alloca(places), count)
            b.store(const(identity, type_), each.values, 1)
            b.store(const(-1, places), each.places, 4)
            found.append(each)
        return cls(b, sink.kind.data, dtype, *found)

    def add(self, value: V, start: V, lanes: int) -> None:
        """Keep the first extremum of each lane and where it stands; NaN beats everything."""
        b = self.b
        value = b.splat(value, lanes)
        first = b.convert("trunc", start, "i32") if start.name.startswith("%") else V("i32", start.name)
        places = b.splat(first, lanes)
        if lanes > 1:
            places = b.binary("add", places, b.iota(lanes, "i32"))
        if lanes == self.wide.lanes:
            self._take(self.wide, value, places)
            return
        for lane in range(lanes):
            self._take(self.narrow, b.extract(value, lane), b.extract(places, lane))

    def _take(self, found: _Found, value: V, place: V) -> None:
        b = self.b
        old, at = b.load(value.type, found.values, 1), b.load(place.type, found.places, 4)
        better = b.binary("or", self._beats(value, old), b.icmp("slt", at, const(0, at.type)))
        self._keep(found, better, value, place)

    def _beats(self, value: V, old: V) -> V:
        b = self.b
        better = emit_function(b, "gt" if self.kind == "argmax" else "lt", [value, old], self.dtype)
        if not self.dtype.is_float:
            return better
        nan, old_nan = (emit_function(b, "isnan", [v], self.dtype) for v in (value, old))
        return b.binary("or", better, b.binary("and", nan, b.binary("xor", old_nan, const(True, old_nan.type))))

    def _keep(self, found: _Found, better: V, value: V, place: V) -> None:
        b = self.b
        old, at = b.load(value.type, found.values, 1), b.load(place.type, found.places, 4)
        b.store(b.select(better, value, old), found.values, 1)
        b.store(b.select(better, place, at), found.places, 4)

    def finish(self) -> V:
        """The place of the best of all lanes, of several that are as good the first."""
        b = self.b
        if self.wide.lanes > 1:
            values = b.load(vector(scalar_type(self.dtype), self.wide.lanes), self.wide.values, 1)
            places = b.load(vector("i32", self.wide.lanes), self.wide.places, 4)
            for lane in range(self.wide.lanes):
                self._compare(b.extract(values, lane), b.extract(places, lane))
        found = self.narrow if self.wide.lanes > 1 else self.wide
        return b.convert("sext", b.load("i32", found.places, 4), "i64")

    def _compare(self, value: V, place: V) -> None:
        """Keep another lane's extremum in place of the one there, if it is better or as good and before that."""
        b = self.b
        old, at = b.load(value.type, self.narrow.values, 1), b.load("i32", self.narrow.places, 4)
        beaten = self._beats(old, value)
        before = b.binary("or", self._beats(value, old), b.icmp("slt", place, at))
        better = b.binary("and", b.binary("xor", beaten, const(True, "i1")), before)
        better = b.binary("or", better, b.icmp("slt", at, const(0, "i32")))
        self._keep(self.narrow, b.binary("and", better, b.icmp("sge", place, const(0, "i32"))), value, place)
