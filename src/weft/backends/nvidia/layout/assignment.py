"""Layout assignment under way: where each value is, and how an op gets it in the layout that it needs.

`LAYOUT_RULES` has a rule for each kind of op, registered in `layout/rules`:

    @LAYOUT_RULES.register(tile.ReduceOp)
    def lay_out_reduce(a: Assignment, op: tile.ReduceOp) -> None:
        layout = a.natural(op.value)
        a.take(op, 0, layout)                                    its operand is wanted so
        a.settle(op, [layout.sliced(op.axis.value.data)])        its result is there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.dialect import ConvertOp, set_layouts
from weft.backends.nvidia.ir.kernel_passes import Refused
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.op_costs import cost_of
from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.backends.nvidia.ir.view_layouts import demanded
from weft.backends.nvidia.layout.anchors import Anchors
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import axes_of

LayoutRule: TypeAlias = "Callable[[Assignment, Any], None]"

LAYOUT_RULES: OpInterface[LayoutRule] = OpInterface("layout")


@dataclass
class Assignment:
    """The walk through a kernel: `home` is where each value that costs something is."""

    anchors: Anchors
    home: dict[SSAValue, Layout] = field(default_factory=dict[SSAValue, Layout])
    made: dict[tuple[SSAValue, Layout], SSAValue] = field(default_factory=dict[tuple[SSAValue, Layout], SSAValue])
    refused: Refused | None = None
    """Why these layouts cannot be."""

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            self.visit(op)

    def visit(self, op: Operation) -> None:
        rule = LAYOUT_RULES.rule_of(op)
        if rule is not None and not self.is_free(op):
            rule(self, op)

    def is_free(self, op: Operation) -> bool:
        """Whether an op's result costs nothing to make again."""
        if isinstance(op, collective_ops.ViewOp) and not is_free_view(op):
            return False
        # A scalar is in all threads: what is made of it costs nothing to have in any layout.
        return cost_of(op).made_again and all(o not in self.home or not self.home[o].shape for o in op.operands)

    def natural(self, value: SSAValue) -> Layout:
        """Where a value is, or would best be."""
        return self.home.get(value) or self.anchors.of(tile.tile_type(value).sizes)

    def settle(self, op: Operation, layouts: Sequence[Layout]) -> None:
        set_layouts(op, layouts)
        self.home.update(zip(op.results, layouts, strict=True))

    def take(self, op: Operation, number: int, layout: Layout) -> None:
        """Let an operand of an op be in a layout."""
        op.operands[number] = self.wanted(op.operands[number], layout)

    def take_together(self, op: Operation) -> None:
        """Let all operands of an op, which have one shape, be in one layout."""
        found = next((self.home[value] for value in op.operands if value in self.home), None)
        layout = found or self.natural(op.operands[0])
        for number in range(len(op.operands)):
            self.take(op, number, layout)

    def yield_in(self, block: Block, layouts: Sequence[Layout]) -> None:
        """Let what a block ends with be in layouts."""
        last = block.last_op
        assert isinstance(last, tile.YieldOp)
        for number, layout in enumerate(layouts):
            self.take(last, number, layout)

    def wanted(self, value: SSAValue, layout: Layout) -> SSAValue:
        if self.home.get(value) == layout:
            return value
        if (value, layout) not in self.made:
            new = self._converted(value, layout) if value in self.home else self._made_again(value, layout)
            self.made[value, layout] = new
            self.home[new] = layout
        return self.made[value, layout]

    def _converted(self, value: SSAValue, layout: Layout) -> SSAValue:
        shared = [mode for mode in self.home[value].blocks if mode.axis is not None]
        if shared and self.home[value].blocks != layout.blocks:
            self.refused = Refused(f"blocks of a cluster have parts of a tile, {self.home[value]}, and need {layout}")
            return value
        op = ConvertOp.make(value, layout)
        if isinstance(value, OpResult):
            block = value.op.parent_block()
            assert block is not None
            block.insert_op_after(op, value.op)
        else:
            block = value.owner
            assert isinstance(block, Block)
            block.insert_ops_before([op], block.first_op) if block.first_op else block.add_op(op)
        return op.out

    def _made_again(self, value: SSAValue, layout: Layout) -> SSAValue:
        assert isinstance(value, OpResult)
        new = value.op.clone()
        for number, operand in enumerate(value.op.operands):
            if isinstance(operand.type, tile.TileType):
                if isinstance(value.op, collective_ops.ViewOp):
                    wanted = demanded(value.op, layout)
                    assert wanted is not None
                else:
                    wanted = layout.narrowed(tile.tile_type(operand).sizes)
                new.operands[number] = self.wanted(operand, wanted)
        set_layouts(new, [layout])
        block = value.op.parent_block()
        assert block is not None
        block.insert_op_after(new, value.op)
        return new.results[0]


def is_free_view(op: collective_ops.ViewOp) -> bool:
    """Whether a view can be made again in any layout: its axes are its operand's, or repeat it."""
    axes, sizes = axes_of(op), tile.tile_type(op.value).sizes
    if axes is None or op.offset.value.data:
        return False
    return all(size == 1 or walked is not None for size, walked in zip(sizes, axes.walked, strict=True))
