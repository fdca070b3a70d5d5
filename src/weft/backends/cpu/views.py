"""Views of tiles: an element of one is an element of another tile, which is found by arithmetic on positions.

Where every axis of a view is an axis of its operand, or repeats it, the operand is computed at the position that
corresponds; otherwise the operand is first written to a buffer and read with the view's strides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.clusters import cost_of
from weft.backends.cpu.memory_order import lazy_closure
from weft.backends.cpu.position import Position, load_strided
from weft.backends.llvm.values import V, i64, vector
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import Axes, axes_of

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_REPEATED_COST = 8
"""What is computed again for every repetition of it costs less than this."""


def is_repeated(op: collective_ops.ViewOp) -> bool:
    return any(size > 1 and step == 0 for size, step in zip(tile.tile_type(op.out).sizes, op.steps, strict=True))


def prepare_views(codegen: KernelCodegen, root: SSAValue) -> None:
    """Write to buffers what a loop over `root` reads through views: before the loop starts."""
    for value in reversed(lazy_closure(root)):
        if not isinstance(value, OpResult) or value in codegen.buffers:
            continue
        match value.op:
            case collective_ops.TakeOp() as op:
                codegen.materialise(op.value)
            case collective_ops.ViewOp() as op if tile.tile_type(op.value).sizes:
                if axes_of(op) is None or (is_repeated(op) and cost_of(op.value) > _REPEATED_COST):
                    codegen.materialise(op.value)
            case _:
                pass


def position_in(axes: Axes, here: Position) -> Position:
    """Where in a view's operand a position of the view is."""
    places = zip(axes.walked, axes.fixed, strict=True)
    index = tuple(i64(at) if axis is None else here.index[axis] for axis, at in places)
    inner = next((a for a, axis in enumerate(axes.walked) if axis == here.inner), None)
    if inner is None:  # it does not move along the lanes
        return here.elsewhere(index, max(len(index) - 1, 0), 1)
    return here.elsewhere(index, inner, here.lanes)


def emit_view(codegen: KernelCodegen, op: collective_ops.ViewOp, here: Position, kept: set[SSAValue]) -> V:
    """The elements of a view at a position."""
    axes = axes_of(op)
    if axes is not None:
        return codegen.at(op.value, position_in(axes, here), kept)
    buffer = codegen.buffers[op.value]
    b, offset = codegen.b, i64(op.offset.value.data)
    for step, index in zip(op.steps, here.index, strict=True):
        offset = b.add(offset, b.mul(i64(step), index))
    step = op.steps[here.inner] if here.index else 0
    lanes = here.lanes if step else 1
    raw = load_strided(b, buffer.element, b.gep(buffer.pointer, offset, buffer.element), i64(step), lanes, buffer.align)
    return buffer.loaded(b, raw)


def emit_take(codegen: KernelCodegen, op: collective_ops.TakeOp, here: Position, kept: set[SSAValue]) -> V:
    """Elements of a buffer at computed positions along an axis."""
    b, axis = codegen.b, op.axis.value.data
    buffer = codegen.buffers[op.value]
    indices = b.splat(codegen.at(op.indices, here, kept), here.lanes)
    raw = V(vector(buffer.element, indices.lanes), "poison")
    for lane in range(indices.lanes):
        place = [b.add(v, i64(lane)) if a == here.inner else v for a, v in enumerate(here.index)]
        place[axis] = b.convert("sext", b.extract(indices, lane), "i64")
        element = b.load(buffer.element, buffer.address(b, place), buffer.align)
        raw = b.insert(raw, element, lane) if indices.lanes > 1 else element
    return buffer.loaded(b, raw)
