"""The factors of a scaled matmul: one for each 128 of K, of each row or column or block of them.

Those of rows and blocks are read a block ahead, so that they are there when the block's matmul is. Of columns a thread
has too many to hold them twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.ir.expr import Size, ceildiv, floordiv, minimum
from weft.ir.types import tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.index_space.evaluate import Source
from weft.ops.body import Value
from weft.ops.matmul.dot import SCALED_BLOCK, Dot, ScaledDot, TiledDot
from weft.tile.dialect import tile_type


@dataclass(frozen=True)
class BlockFactors:
    """The factors of the rows' operand and of the columns'; the sizes of the matmul."""

    of_rows: Source
    of_columns: Source
    sides: tuple[Size, Size, Size]

    @classmethod
    def of(cls, dot: Dot | ScaledDot | TiledDot) -> BlockFactors | None:
        if not isinstance(dot, ScaledDot):
            return None
        x, y, s, t = (Source(value, tensor_of(value.type)) for value in dot.operands)
        (m, k), n = x.tensor.shape, y.tensor.shape[1]
        return cls(s, t, (m, n, k))

    @property
    def come_ahead(self) -> bool:
        return self.of_columns.tensor.shape[1] != self.sides[1]

    def places(self, index: Sequence[Size], bases: Mapping[str, Size], block: Size) -> list[tuple[Source, list[Size]]]:
        """Where the factors of a block of K lie for the elements at an index, of a tile that starts at `bases`."""
        (m, n, _), (row, column) = self.sides, index
        row = row if self.of_rows.tensor.shape[0] == m else floordiv(bases.get("m", 0), SCALED_BLOCK)
        column = column if self.of_columns.tensor.shape[1] == n else floordiv(bases.get("n", 0), SCALED_BLOCK)
        return [(self.of_rows, [row, block]), (self.of_columns, [block, column])]

    def tiles(self, emit: KernelEmitter, index: Sequence[Size], bases: Mapping[str, Size], block: Size) -> list[Value]:
        """The factors of a block of K, or of the last; the axes must be those of the matmul."""
        last = ceildiv(self.sides[2], SCALED_BLOCK) - 1
        return [emit.at(*place) for place in self.places(index, bases, minimum(block, last))]


def scaled(emit: KernelEmitter, made: Value, factors: Sequence[Value], total: TileValue | None) -> TileValue:
    """A block's matmul by its factors, and what was summed before it."""
    first, last = factors
    assert isinstance(last, TileValue)
    if tile_type(last.ssa).sizes[1] == 1:  # one factor for each row
        first, last = None, emit.math("mul", first, last)
    if first is not None:
        made = emit.math("mul", made, first)
    result = emit.math("mul", made, last) if total is None else emit.fused(made, last, total)
    assert isinstance(result, TileValue)
    return result
