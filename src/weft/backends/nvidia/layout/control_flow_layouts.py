"""Layouts of the ops that kernels are written with: the other half of `assign_layouts`.

%y = tile.view %x    transposed       →    %y = tile.view %x {nvidia.layouts = […]}   // in the registers of %x
%s = tile.scan %x    along axis 0          %c = nvidia.convert %x                     // in order along axis 0
                                           %s = tile.scan %c

A scalar is in one register of every thread. What a loop carries and a branch gives is where its block leaves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.dialect import ARGUMENTS, set_layouts
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.layouts import Layout, scalar_layout
from weft.backends.nvidia.ir.op_facts import is_commutative
from weft.backends.nvidia.ir.tma_store import TruncatePackOp
from weft.backends.nvidia.ir.view_layouts import demanded, in_order, renamed
from weft.backends.nvidia.ir.wgmma import words_layout
from weft.errors import LoweringError
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import axes_of

if TYPE_CHECKING:
    from weft.backends.nvidia.layout.assign_layouts import Assignment


def assign_written(a: Assignment, op: Operation) -> None:
    """Give the results of an op layouts, and take its operands in those it needs."""
    scalar = scalar_layout(a.anchors.warps)
    match op:
        case pointer_ops.IndexOp() | pointer_ops.PointerOp():
            a.take(op, 0, scalar)
        case pointer_ops.AddressOp():
            a.settle(op, [scalar])
        case collective_ops.ViewOp():
            _view(a, op)
        case collective_ops.TakeOp():
            a.take(op, 0, a.natural(op.value))
            layout = a.natural(op.indices)
            a.take(op, 1, layout)
            a.settle(op, [layout])
        case collective_ops.FoldOp() | collective_ops.ScanOp():
            _combine(a, op)
        case collective_ops.OrderOp():
            shape = tile.tile_type(op.value).sizes
            layout = in_order(shape, len(shape) - 1, a.anchors.warps)
            a.take(op, 0, layout)
            a.settle(op, [layout])
        case collective_ops.HistogramOp():
            _together(a, op)
            a.settle(op, [a.anchors.of(tile.tile_type(op.out).sizes)])
        case control_flow.CheckOp():
            _together(a, op)
        case control_flow.PrintOp():
            for number, value in enumerate(op.operands):
                a.take(op, number, a.natural(value))
        case control_flow.IfOp():
            _branch(a, op)
        case control_flow.WhileOp():
            _while(a, op)
        case _:
            raise LoweringError(f"{op.name} has no layout on a GPU")


def is_free_view(op: collective_ops.ViewOp) -> bool:
    """Whether a view can be made again in any layout: its axes are its operand's, or repeat it."""
    axes, sizes = axes_of(op), tile.tile_type(op.value).sizes
    if axes is None or op.offset.value.data:
        return False
    return all(size == 1 or walked is not None for size, walked in zip(sizes, axes.walked, strict=True))


def _together(a: Assignment, op: Operation) -> None:
    """An op whose operands have one shape."""
    layout = next((a.home[value] for value in op.operands if value in a.home), None) or a.natural(op.operands[0])
    for number in range(len(op.operands)):
        a.take(op, number, layout)


def _view(a: Assignment, op: collective_ops.ViewOp) -> None:
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


def _combine(a: Assignment, op: collective_ops.FoldOp | collective_ops.ScanOp) -> None:
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
    _yield(a, op.block, [scalar] * len(op.values))


def _yield(a: Assignment, block: Block, layouts: list[Layout]) -> None:
    last = block.last_op
    assert isinstance(last, tile.YieldOp)
    for number, layout in enumerate(layouts):
        a.take(last, number, layout)


def _yielded(block: Block) -> list[SSAValue]:
    last = block.last_op
    assert isinstance(last, tile.YieldOp)
    return list(last.operands)


def _branch(a: Assignment, op: control_flow.IfOp) -> None:
    a.take(op, 0, scalar_layout(a.anchors.warps))
    blocks = (op.then.block, op.otherwise.block)
    layouts: list[Layout] = []
    for yes, no in zip(*map(_yielded, blocks), strict=True):
        layouts.append(predicted(a, yes) or predicted(a, no) or a.natural(yes))
    for block in blocks:
        a.block(block)
        _yield(a, block, layouts)
    a.settle(op, layouts)


def _while(a: Assignment, op: control_flow.WhileOp) -> None:
    layouts = carried_layouts(a, list(op.initial), _yielded(op.body.block))
    for number, layout in enumerate(layouts):
        a.take(op, number, layout)
    set_layouts(op, layouts, ARGUMENTS)
    for block, wanted in ((op.condition.block, [scalar_layout(a.anchors.warps)]), (op.body.block, layouts)):
        a.home.update(zip(block.args, layouts, strict=True))
        a.block(block)
        _yield(a, block, wanted)
    a.settle(op, layouts)


def carried_layouts(a: Assignment, initial: list[SSAValue], yielded: list[SSAValue]) -> list[Layout]:
    """Where a loop carries its values: as an iteration leaves them, so that nothing moves from iteration to
    iteration.
    """
    return [predicted(a, end) or a.natural(start) for start, end in zip(initial, yielded, strict=True)]


def predicted(a: Assignment, value: SSAValue, depth: int = 64) -> Layout | None:
    """Where a value will be whose op has no layout yet; None where nothing says so."""
    if value in a.home or not depth or not isinstance(value, OpResult):
        return a.home.get(value)
    op, shape = value.op, tile.tile_type(value).sizes
    if not shape:
        return scalar_layout(a.anchors.warps)
    match op:
        case tile.LoadOp():
            return a.anchors.coalesced(op)
        case tile.GatherOp():
            return a.anchors.of(shape)
        case tile.ReduceOp() | MomentsOp() | collective_ops.FoldOp():
            source = op.operands[0]
            found = predicted(a, source, depth - 1) or a.anchors.of(tile.tile_type(source).sizes)
            return found.sliced(op.axis.value.data)
        case OnlineSoftmaxOp():
            found = predicted(a, op.value, depth - 1) or a.anchors.of(tile.tile_type(op.value).sizes)
            return found if shape == found.shape else found.sliced(op.axis.value.data)
        case collective_ops.ScanOp():
            return in_order(shape, op.axis.value.data, a.anchors.warps)
        case collective_ops.ViewOp():
            found = predicted(a, op.value, depth - 1)
            if found is None or not found.shape:  # what is made of a scalar is wherever it is wanted
                return None
            return renamed(op, found) or a.anchors.of(shape)
        case TruncatePackOp():
            return words_layout(a.anchors.of(tile.tile_type(op.value).sizes))
        case tile.MapOp():
            found = [predicted(a, arg, depth - 1) for arg in op.args if tile.tile_type(arg).sizes == shape]
            known = [layout for layout in found if layout is not None]
            anchor = a.anchors.of(shape)
            return anchor if anchor in known else known[0] if known else None
        case _:
            return None
