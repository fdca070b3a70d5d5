"""How neighbouring elements of a tile differ along an axis: not at all, by a known number, or who knows how."""

from __future__ import annotations

from xdsl.ir import OpResult, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import axes_of


class Neighbours:
    """What is known of a kernel's tiles, found once for each and axis."""

    def __init__(self) -> None:
        self._still: dict[tuple[SSAValue, int], bool] = {}
        self._steps: dict[tuple[SSAValue, int], int | None] = {}

    def is_still(self, value: SSAValue, axis: int) -> bool:
        """Whether all elements along an axis are the same, whatever the tile holds."""
        key = (value, axis)
        if key not in self._still:
            sizes = tile.tile_type(value).sizes
            self._still[key] = axis >= len(sizes) or sizes[axis] == 1 or self._find_still(value, axis)
        return self._still[key]

    def _find_still(self, value: SSAValue, axis: int) -> bool:
        match value.op if isinstance(value, OpResult) else None:
            case tile.ConstantOp():
                return True
            case tile.PositionOp() as op:
                return op.strides.data[axis] == 0
            case tile.MapOp() as op:
                return all(self.is_still(arg, axis) for arg in op.args)
            case tile.GatherOp() as op:
                return self.is_still(op.offsets, axis) and (op.mask is None or self.is_still(op.mask, axis))
            case collective_ops.ViewOp() as op:
                source = source_axis(op, axis)
                return op.steps[axis] == 0 or (source is not None and self.is_still(op.value, source))
            case _:
                return False

    def step_along(self, value: SSAValue, axis: int) -> int | None:
        """How far apart neighbouring elements of an integer tile are along an axis, if that is known."""
        key = (value, axis)
        if key not in self._steps:
            self._steps[key] = 0 if self.is_still(value, axis) else self._find_step(value, axis)
        return self._steps[key]

    def _find_step(self, value: SSAValue, axis: int) -> int | None:
        if tile.tile_type(value).dtype.kind != "int":
            return None
        match value.op if isinstance(value, OpResult) else None:
            case tile.PositionOp() as op:
                stride = op.strides.data[axis]
                return stride if isinstance(stride, int) else None
            case tile.MapOp() as op if op.function.data in ("add", "sub"):
                first, second = (self.step_along(arg, axis) for arg in op.args)
                if first is None or second is None:
                    return None
                return first + second if op.function.data == "add" else first - second
            case tile.MapOp() as op if op.function.data == "mul":
                left, right = op.args
                return self._scaled(left, right, axis) or self._scaled(right, left, axis)
            case tile.MapOp() as op if op.function.data == "cast":
                source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
                assert isinstance(source, DType) and isinstance(target, DType)
                # What is unsigned may have wrapped around on the way.
                wider = source.kind == "int" and target.kind == "int" and target.bits >= source.bits
                return self.step_along(op.args[0], axis) if wider else None
            case collective_ops.ViewOp() as op:
                walked = source_axis(op, axis)
                return None if walked is None else self.step_along(op.value, walked)
            case _:
                return None

    def _scaled(self, value: SSAValue, factor: SSAValue, axis: int) -> int | None:
        """The step of a product with a known factor."""
        while isinstance(factor, OpResult) and isinstance(factor.op, collective_ops.ViewOp):
            factor = factor.op.value
        if not isinstance(factor, OpResult) or not isinstance(factor.op, tile.ConstantOp):
            return None
        step, number = self.step_along(value, axis), from_attribute(factor.op.value)
        return step * number if step is not None and isinstance(number, int) else None


def source_axis(op: collective_ops.ViewOp, axis: int) -> int | None:
    """The operand's axis that an axis of a view walks along."""
    axes = axes_of(op)
    return None if axes is None else next((a for a, walked in enumerate(axes.walked) if walked == axis), None)
