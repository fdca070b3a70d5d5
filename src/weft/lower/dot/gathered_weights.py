"""Gathered weights: matmuls whose weights are chosen by numbers known when they run, as of a mixture's experts.

%c = graph.take %w, %chosen                      %e = tile.index (tile.load %chosen[r])
%y = graph.dot %x, (graph.permute %c)      →     … tile.load %w[%e, …] in the matmul's loop

Each row of x is multiplied with one of the matrices, and reads just that.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue

from weft.ir.expr import Expr, Size, symbol
from weft.ir.types import i64, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.index_space.evaluate import Source
from weft.ops.indexing.index import Take
from weft.ops.matmul.dot import Dot
from weft.passes.dot.read_gathered_weights import chosen_by
from weft.tile import pointer_ops

_NAME = "chosen"


@dataclass(frozen=True)
class GatheredWeights:
    """Matrices [E, N, K], and the numbers [R] of those that rows [R, 1, K] are multiplied with."""

    op: Take

    @classmethod
    def of(cls, dot: Dot) -> GatheredWeights | None:
        op = chosen_by(dot)
        return None if op is None else cls(op)

    @property
    def weights(self) -> SSAValue:
        return self.op.operands[0]

    @property
    def matrix(self) -> Expr:
        """The number of a program's matrix, wherever it stands in an index."""
        return symbol(_NAME)

    def find(self, emit: KernelEmitter, row: Size) -> None:
        """Read the number of a program's matrix: counted from the end if negative, and kept inside."""
        rank, emit.rank = emit.rank, 0  # a number, which every thread has
        places = self.op.operands[1]
        count = tensor_of(self.weights.type).shape[0]
        value = emit.cast(emit.at(Source(places, tensor_of(places.type)), [row]), i64)
        zero, size, last = (emit.constant(number, i64) for number in (0, count, count - 1))  # type: ignore[arg-type]
        value = emit.where(emit.math("lt", value, zero), emit.math("add", value, size), value)
        value = emit.math("max", emit.math("min", value, last), zero)
        assert isinstance(value, TileValue)
        emit.scalars[_NAME] = emit.add(pointer_ops.IndexOp.create(operands=[value.ssa], result_types=[IndexType()]))
        emit.rank = rank
