"""Tiles as the kernels of attention make them, whichever way they go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.index_space.evaluate import Source
from weft.ops.body import Value
from weft.tile import dialect as tile

LOG2_E = 1.4426950408889634
"""Scores are kept in units in which powers of two are powers of e: those take fewer steps."""


class AttentionTiles:
    """What writes ops into a kernel, and the type that it computes in."""

    emit: KernelEmitter
    dtype: DType

    def _added(self, scores: Value, mask: Value) -> Value:
        """Scores, in units of powers of two, and a mask of numbers that are added to them in units of powers of e."""
        emit = self.emit
        value = emit.cast(mask, self.dtype)
        nothing = emit.constant(float("-inf"), self.dtype)
        # The lowest number, which often stands for minus infinity, must not become that: a row of it has a sum.
        lowest = emit.constant(float(np.finfo(self.dtype.numpy).min), self.dtype)
        added = emit.math("max", emit.math("mul", value, emit.constant(LOG2_E, self.dtype)), lowest)
        return emit.where(emit.math("eq", value, nothing), nothing, emit.math("add", scores, added))

    def _float(self, value: SSAValue, index: Sequence[Size]) -> Value:
        return self.emit.cast(self.emit.at(Source(value, tensor_of(value.type)), index), self.dtype)

    def _tile(self, value: Value, shape: tuple[int, int]) -> SSAValue:
        return self.emit.repeated(value, shape).ssa

    def _full(self, number: float, shape: tuple[int, int]) -> TileValue:
        type_ = tile.TileType.of(shape, self.dtype)
        return TileValue(self.emit.add(tile.ConstantOp.make(number, type_)), self.dtype)

    def _dot(self, a: SSAValue, b: SSAValue, shape: tuple[int, int], total: SSAValue | None = None) -> SSAValue:
        operands = [a, b] if total is None else [a, b, total]
        return self.emit.add(tile.DotOp.create(operands=operands, result_types=[tile.TileType.of(shape, self.dtype)]))

    def _typed(self, value: Value) -> TileValue:
        assert isinstance(value, TileValue)
        return value
