"""Layouts of reductions and scans: results are slices of the layout of what is reduced."""

from __future__ import annotations

from weft.backends.nvidia.ir.dialect import ARGUMENTS, set_layouts
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp, Reduction
from weft.backends.nvidia.ir.layouts import Layout, scalar_layout
from weft.backends.nvidia.ir.op_facts import is_commutative
from weft.backends.nvidia.ir.view_layouts import in_order
from weft.backends.nvidia.layout.assignment import LAYOUT_RULES, Assignment
from weft.tile import collective_ops
from weft.tile import dialect as tile


@LAYOUT_RULES.register(tile.ReduceOp)
def lay_out_reduce(a: Assignment, op: tile.ReduceOp) -> None:
    a.settle(op, [_reduced(a, op).sliced(op.axis.value.data)])


@LAYOUT_RULES.register(MomentsOp)
def lay_out_moments(a: Assignment, op: MomentsOp) -> None:
    a.settle(op, [_reduced(a, op).sliced(op.axis.value.data)] * 2)


@LAYOUT_RULES.register(OnlineSoftmaxOp)
def lay_out_online_softmax(a: Assignment, op: OnlineSoftmaxOp) -> None:
    layout = _reduced(a, op)
    sliced = layout.sliced(op.axis.value.data)
    a.settle(op, [layout, sliced, sliced])


def _reduced(a: Assignment, op: Reduction) -> Layout:
    """Take what is reduced where it is."""
    layout = a.natural(op.value)
    a.take(op, 0, layout)
    return layout


@LAYOUT_RULES.register(tile.AddExponentialsOp)
def lay_out_added_exponentials(a: Assignment, op: tile.AddExponentialsOp) -> None:
    pairs = a.anchors.of(tile.tile_type(op.largest).sizes)  # each thread has a pair of its own
    for number, layout in enumerate((pairs, pairs, a.natural(op.value))):
        a.take(op, number, layout)
    a.settle(op, [pairs, pairs])


@LAYOUT_RULES.register(collective_ops.FoldOp, collective_ops.ScanOp)
def lay_out_combine(a: Assignment, op: collective_ops.FoldOp | collective_ops.ScanOp) -> None:
    axis, scalar = op.axis.value.data, scalar_layout(a.anchors.warps)
    shape = tile.tile_type(op.values[0]).sizes
    layout = a.natural(op.values[0])
    if isinstance(op, collective_ops.ScanOp) or not is_commutative(op) or layout.covered(axis) > shape[axis]:
        layout = in_order(shape, axis, a.anchors.warps)
    for number in range(len(op.values)):
        a.take(op, number, layout)
    result = layout if isinstance(op, collective_ops.ScanOp) else layout.sliced(axis)
    a.settle(op, [result] * len(op.results))
    set_layouts(op, [scalar] * len(op.block.args), ARGUMENTS)
    a.home.update(dict.fromkeys(op.block.args, scalar))
    a.block(op.block)
    a.yield_in(op.block, [scalar] * len(op.values))


@LAYOUT_RULES.register(collective_ops.OrderOp)
def lay_out_order(a: Assignment, op: collective_ops.OrderOp) -> None:
    shape = tile.tile_type(op.value).sizes
    layout = in_order(shape, len(shape) - 1, a.anchors.warps)
    a.take(op, 0, layout)
    a.settle(op, [layout])


LAYOUT_RULES.never_for("rows are sorted by torch", tile.SortOp)
