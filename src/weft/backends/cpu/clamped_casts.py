"""Casts of clamped floats to narrow integers: within the integer's range there is nothing to saturate or to wrap.

cast(min(max(x, 0), 255), u8)     which is how a quantized tensor ends; two comparisons and a conversion do for it
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import register_type
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.values import V
from weft.ir.attributes import from_attribute
from weft.ir.types import DType, f32, f64
from weft.tile import dialect as tile

_BITS = (8, 16)
"""Integers of these widths have limits that every float has, and fit into one of 32 bits."""


@dataclass(frozen=True)
class ClampedCast:
    """A cast to an integer of what is not below `low` and not above `high`; of NaN it makes 0."""

    value: SSAValue
    low: float
    high: float
    target: DType
    between: tuple[SSAValue, SSAValue]
    """The values that are clamped on one side, and on both."""

    @staticmethod
    def of(op: tile.MapOp) -> ClampedCast | None:
        if op.function.data != "cast":
            return None
        source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
        assert isinstance(source, DType) and isinstance(target, DType)
        if source not in (f32, f64) or not target.is_integer or target.bits not in _BITS or "rounding" in op.attributes:
            return None
        upper = _limit(op.args[0], "min")
        lower = None if upper is None else _limit(upper[0], "max")
        if upper is None or lower is None:
            return None
        least, most = (-(1 << target.bits - 1), (1 << target.bits - 1) - 1)
        if target.kind == "uint":
            least, most = 0, (1 << target.bits) - 1
        if not least <= lower[1] <= upper[1] <= most:
            return None
        return ClampedCast(lower[0], lower[1], upper[1], target, (upper[0], op.args[0]))

    def emit(self, b: Function, value: V) -> V:
        """The integers of a value that is not clamped yet. A comparison with NaN is false, which chooses the limit."""
        x = E(b, value)
        above = x.compare("ogt", self.low).select(x, self.low)
        inside = above.compare("olt", self.high).select(above, self.high)
        whole = inside.to("fptosi", "i32")
        if self.low != 0:
            whole = x.compare("uno", x).select(0, whole)
        return whole.to("trunc", register_type(self.target)).v


def _limit(value: SSAValue, function: str) -> tuple[SSAValue, float] | None:
    """What a value is the larger or the smaller of, and the number that it is compared with."""
    op = value.owner
    if not isinstance(op, tile.MapOp) or op.function.data != function:
        return None
    for other, limit in (op.args, tuple(reversed(op.args))):
        if isinstance(limit.owner, tile.ConstantOp):
            number = from_attribute(limit.owner.value)
            return (other, float(number)) if isinstance(number, int | float) else None
    return None
