"""Reductions at an index, as loops over columns carry them: what is combined, and what becomes of the total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.ir.expr import Size
from weft.ir.types import DType, f32, f64, tensor_of
from weft.lower.emit.body import TileValue
from weft.lower.groups.online_softmax import OnlinePair, combined, start_pair, with_more
from weft.lower.index_space.evaluate import AddressRecorder, Source, finish
from weft.ops.base import Reduction
from weft.ops.body import Value
from weft.tile.functions import COMBINERS

if TYPE_CHECKING:
    from weft.lower.groups.columns import GroupEmitter


@dataclass
class Combined:
    """A reduction at an index: what is combined, and what becomes of the total."""

    emit: GroupEmitter
    op: Reduction
    index: Sequence[Size]
    operands: Sequence[Source]
    dtype: DType = f32

    @classmethod
    def of(cls, emit: GroupEmitter, op: Reduction, index: Sequence[Size]) -> Combined:
        return cls(emit, op, index, [Source(value, tensor_of(value.type)) for value in op.operands])

    def __post_init__(self) -> None:
        self.rule: Any = type(self.op)
        self.kind: str = self.rule.KIND
        self.combiner = COMBINERS[self.kind]
        self.tensor = tensor_of(self.op.results[0].type)
        # Every factor of a matmul adds a rounding: those of f32 are made in f64.
        self.wide = self.kind == "prod" and self.tensor.dtype == f32

    def begin(self) -> None:
        """Learn the type of what is combined, without making code."""
        emit = self.emit
        probe = AddressRecorder(emit.layouts, space=emit.domain.bounds, columns=emit.domain.column_index)
        probe.dynamic = dict(emit.dynamic)
        dtype = self.rule.element(probe, self.index, emit.domain.column_index, *self.operands, **self.op.params).dtype
        self.dtype = f64 if self.wide and dtype == f32 else dtype

    def start(self) -> TileValue:
        return self.emit.spread(self.emit.constant(self.combiner.identity(self.dtype), self.dtype))

    def element(self) -> TileValue:
        emit = self.emit
        value = self.rule.element(emit, self.index, emit.domain.column_index, *self.operands, **self.op.params)
        made = emit.cast(value, f64) if self.wide and value.dtype == f32 else value
        assert isinstance(made, TileValue)
        return made

    def with_another(self, total: TileValue, value: TileValue) -> TileValue:
        made = self.emit.math(self.combiner.function, total, value)
        assert isinstance(made, TileValue)
        return replace(made, dtype=self.dtype)

    def finished(self, value: TileValue) -> Value:
        narrowed = self.emit.cast(value, f32) if self.wide and value.dtype == f64 else value
        return finish(self.emit, self.op, narrowed, self.index, self.operands)

    def know(self, total: TileValue) -> None:
        """Let what needs the reduction find it."""
        self.emit.know(Source(self.op.results[0], self.tensor), self.index, self.finished(total))


@dataclass
class Paired:
    """A maximum and the sum of exponentials below it, at an index."""

    emit: GroupEmitter
    pair: OnlinePair
    largest: Combined
    total: Combined

    def start(self) -> list[TileValue]:
        return start_pair(self.emit, self.emit.schedule.capacity)

    def with_more(self, state: Sequence[TileValue]) -> list[TileValue]:
        return with_more(self.emit, state, self.largest.element())

    def finish(self, state: Sequence[TileValue]) -> None:
        emit, base = self.emit, self.pair.base
        largest, seen_from, total = combined(emit, state)
        self.largest.know(largest)
        shift = emit.math("sub", seen_from, emit.at(Source(base, tensor_of(base.type)), self._base_index()))
        scaled = emit.math("mul", total, emit.math("exp", shift))
        assert isinstance(scaled, TileValue)
        self.total.know(scaled)

    def _base_index(self) -> list[Size]:
        dims, rows = self.pair.largest.params["dims"], iter(self.emit.domain.row_index)
        rank = len(tensor_of(self.pair.base.type).shape)
        return [0 if d in dims else next(rows) for d in range(rank)]
