"""Layouts of what is done element by element, and of what moves elements within a tile."""

from __future__ import annotations

from weft.backends.nvidia.ir.dialect import ConvertOp
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.view_layouts import demanded, renamed
from weft.backends.nvidia.layout.assignment import LAYOUT_RULES, Assignment, is_free_view
from weft.tile import collective_ops, control_flow
from weft.tile import dialect as tile


@LAYOUT_RULES.register(tile.MapOp)
def lay_out_map(a: Assignment, op: tile.MapOp) -> None:
    layout = _of_operands(a, op)
    for number, operand in enumerate(op.operands):
        a.take(op, number, layout.narrowed(tile.tile_type(operand).sizes))
    a.settle(op, [layout])


def _of_operands(a: Assignment, op: tile.MapOp) -> Layout:
    shape = tile.tile_type(op.out).sizes
    homes = [a.home[o] for o in op.operands if o in a.home and tile.tile_type(o).sizes == shape]
    anchor = a.anchors.of(shape)
    return anchor if not homes or anchor in homes else homes[0]


@LAYOUT_RULES.register(collective_ops.ViewOp)
def lay_out_view(a: Assignment, op: collective_ops.ViewOp) -> None:
    shape = tile.tile_type(op.out).sizes
    source = a.natural(op.value)
    layout = renamed(op, source)
    if layout is None:
        layout = a.anchors.of(shape)
        wanted = demanded(op, layout)
        # A repetition is cheap to read from shared memory: the operand is then small, and so is its conversion.
        source = wanted if wanted is not None and is_free_view(op) else source
    a.take(op, 0, source)
    a.settle(op, [layout])


@LAYOUT_RULES.register(collective_ops.TakeOp)
def lay_out_take(a: Assignment, op: collective_ops.TakeOp) -> None:
    a.take(op, 0, a.natural(op.value))
    layout = a.natural(op.indices)
    a.take(op, 1, layout)
    a.settle(op, [layout])


@LAYOUT_RULES.register(collective_ops.HistogramOp)
def lay_out_histogram(a: Assignment, op: collective_ops.HistogramOp) -> None:
    a.take_together(op)
    a.settle(op, [a.anchors.of(tile.tile_type(op.out).sizes)])


@LAYOUT_RULES.register(control_flow.CheckOp)
def lay_out_check(a: Assignment, op: control_flow.CheckOp) -> None:
    a.take_together(op)


@LAYOUT_RULES.register(control_flow.PrintOp)
def lay_out_print(a: Assignment, op: control_flow.PrintOp) -> None:
    for number, value in enumerate(op.operands):
        a.take(op, number, a.natural(value))


LAYOUT_RULES.nothing_for("it is made in each layout that it is wanted in", tile.ConstantOp, tile.PositionOp)
LAYOUT_RULES.never_for("it stands between two layouts", ConvertOp)
