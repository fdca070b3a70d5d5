"""Division of many values by one: the reciprocal is made once, with twice the digits, and multiplied by.

A quotient is rounded once but for the 48th digit, so it is what a division gives in all but one case of millions. On
common processors a division takes as long as ten multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.llvm.builder import Function
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.values import V

# Beyond these the reciprocal, or its lower part, may leave the range of the type.
_FAR = {"float": 2.0**64, "double": 2.0**512}
_BITS = {"float": "i32", "double": "i64"}


def can_divide(b: Function, element: str) -> bool:
    """Whether there are reciprocals of a type: they need products that are rounded after an addition."""
    return element in _FAR and "fma" not in b.module.lacks


@dataclass(frozen=True)
class Divisor:
    """x / d = x·scale·high + x·scale·low, where `scale` is a power of two, and 1 for most d."""

    scale: V
    high: V
    low: V

    @classmethod
    def of(cls, b: Function, divisor: V) -> Divisor:
        """The reciprocal of a scalar.

        Both parts have one sign, and neither is 0, so that infinities stay what they are. 0, ∞ and NaN give a
        reciprocal that is the same in both parts.
        """
        d = E(b, divisor)
        far = _FAR[d.element]
        magnitude = abs(d)
        up, down = magnitude.compare("olt", 1 / far), magnitude.compare("ogt", far)
        scale = up.select(far, down.select(1 / far, d.of(1.0)))
        scaled = d * scale
        nearest = 1.0 / scaled
        # The nearest may be too large: then the one below it.
        beyond = (-scaled).fma(nearest, 1.0).compare("olt", 0.0)
        high = beyond.select((nearest.bits() - 1).as_type(d.element), nearest)
        rest = (-scaled).fma(high, 1.0) * high
        low = rest.compare("oeq", 0.0).select(high * 2.0**-60, rest)
        special = rest.compare("uno", 0.0)
        return cls(scale.v, special.select(nearest, high).v, special.select(nearest, low).v)

    def divide(self, b: Function, dividend: V) -> V:
        """The quotients of a vector."""
        scale, high, low = (E(b, b.splat(part, dividend.lanes)) for part in (self.scale, self.high, self.low))
        x = E(b, dividend) * scale
        return x.fma(high, x * low).v
