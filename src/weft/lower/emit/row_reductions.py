"""The emitter of a matmul's kernel, which may scale its results by what it finds of whole rows of K.

%s = tile.reduce sum (%h * %h) axis 1           before the loop over K: the rows as they are in memory
%c = tile.for %k … { tile.dot … }
tile.store %y[..], %c * rsqrt(%s)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.ir import Block

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.index_space.evaluate import Source, finish
from weft.ops.base import Reduction
from weft.ops.body import Value
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS


def reduced_sizes(op: Reduction) -> tuple[Size, ...]:
    """The sizes of what a reduction reduces over."""
    rule: Any = type(op)
    return tuple(rule.ranges(*(tensor_of(operand.type) for operand in op.operands), **op.params))


@dataclass
class DotEmitter(KernelEmitter):
    """The emitter with reductions of rows along K, whose ops are kept apart until it is clear where they go."""

    ahead: Block = field(default_factory=Block)

    def reduce(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> Value:
        runs = self.domain.column_runs
        rule: Any = type(op)
        depth = runs[0].size
        assert len(runs) == 1 and isinstance(depth, int) and reduced_sizes(op) == (depth,), "asked before"
        before = self.axes, self.block, self.scopes
        self.axes = {name: axis for name, axis in self.axes.items() if axis.position == 0}
        self.block, self.scopes = self.ahead, [{}]  # nothing that is made later
        self.tile_axis(runs[0].name, depth, 1, 0, depth)
        made = self._whole_row(rule, op, index, operands, depth)
        self.axes, self.block, self.scopes = before
        return made

    def _whole_row(
        self, rule: Any, op: Reduction, index: Sequence[Size], operands: Sequence[Source], depth: int
    ) -> Value:
        element = rule.element(self, index, self.domain.column_index, *operands, **op.params)
        assert isinstance(element, TileValue)
        rows = tile.tile_type(element.ssa).sizes[0]
        dtype = COMBINERS[rule.KIND].result_dtype(element.dtype)
        total = self.reduce_axis(self.repeated(element, (rows, depth)), rule.KIND, 1, dtype)
        return finish(self, op, total, index, operands)

    def place_ahead(self, block: Block) -> None:
        """Put the reductions before the matmuls of a block."""
        for op in list(self.ahead.ops):
            op.detach()
            block.insert_op_before(op, next(each for each in block.ops if isinstance(each, tile.ForOp | tile.DotOp)))
