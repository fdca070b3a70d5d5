"""Layouts of loops, branches and roles: what a loop carries and a branch gives is where its block leaves it."""

from __future__ import annotations

from xdsl.ir import Block, SSAValue

from weft.backends.nvidia.ir.dialect import ARGUMENTS, BarrierOp, set_layouts
from weft.backends.nvidia.ir.layouts import Layout, scalar_layout
from weft.backends.nvidia.ir.warp_specialization import PingPongBarrierOp, WarpSpecializeOp
from weft.backends.nvidia.layout.assignment import LAYOUT_RULES, Assignment
from weft.backends.nvidia.layout.predicted_layouts import carried_layouts, predicted
from weft.tile import control_flow
from weft.tile import dialect as tile


@LAYOUT_RULES.register(tile.ForOp)
def lay_out_for(a: Assignment, op: tile.ForOp) -> None:
    carried = op.block.args[1:]
    last = op.block.last_op
    assert last is not None
    layouts = carried_layouts(a, list(op.initial), list(last.operands))
    for number, (argument, layout) in enumerate(zip(carried, layouts, strict=True)):
        a.take(op, len(op.indices) + number, layout)
        a.home[argument] = layout
    set_layouts(op, layouts, ARGUMENTS)
    a.settle(op, layouts)
    a.block(op.block)
    for number, layout in enumerate(layouts):
        a.take(last, number, layout)


@LAYOUT_RULES.register(control_flow.IfOp)
def lay_out_if(a: Assignment, op: control_flow.IfOp) -> None:
    a.take(op, 0, scalar_layout(a.anchors.warps))
    blocks = (op.then.block, op.otherwise.block)
    layouts: list[Layout] = []
    for yes, no in zip(*map(_yielded, blocks), strict=True):
        layouts.append(predicted(a, yes) or predicted(a, no) or a.natural(yes))
    for block in blocks:
        a.block(block)
        a.yield_in(block, layouts)
    a.settle(op, layouts)


@LAYOUT_RULES.register(control_flow.WhileOp)
def lay_out_while(a: Assignment, op: control_flow.WhileOp) -> None:
    layouts = carried_layouts(a, list(op.initial), _yielded(op.body.block))
    for number, layout in enumerate(layouts):
        a.take(op, number, layout)
    set_layouts(op, layouts, ARGUMENTS)
    for block, wanted in ((op.condition.block, [scalar_layout(a.anchors.warps)]), (op.body.block, layouts)):
        a.home.update(zip(block.args, layouts, strict=True))
        a.block(block)
        a.yield_in(block, wanted)
    a.settle(op, layouts)


def _yielded(block: Block) -> list[SSAValue]:
    last = block.last_op
    assert isinstance(last, tile.YieldOp)
    return list(last.operands)


@LAYOUT_RULES.register(WarpSpecializeOp)
def lay_out_roles(a: Assignment, op: WarpSpecializeOp) -> None:
    for block in (*op.producers, op.consumer.block):
        a.block(block)


LAYOUT_RULES.nothing_for("the op around it takes what it is given", tile.YieldOp, tile.ReturnOp)
LAYOUT_RULES.nothing_for("it has no tile", BarrierOp, PingPongBarrierOp)
