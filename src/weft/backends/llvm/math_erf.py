"""The error function in f32 as vector code (see `math.py`): polynomials only, no exponential and no division."""

from __future__ import annotations

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import at_most

# erf(x) / x - 1 in x², up to 1.1
_SMALL = (
    *(0.12837916612625122, -0.37612611055374146, 0.11283363401889801, -0.026843471452593803),
    *(0.00516763050109148, -0.0007823832565918565, 7.233151700347662e-05),
)
# (1 - erf(x))^(1/4), from 1.1 to 4
_LARGE = (
    *(1.005173921585083, -0.3074949085712433, -0.06558457016944885, -0.048513107001781464),
    *(0.06506887078285217, -0.02188204601407051, 0.0031774917151778936, -0.00017542678688187152),
)


def erf(x: E) -> E:
    magnitude = at_most(abs(x), 4.0)
    small = horner(x * x, _SMALL).fma(x, x)
    root = horner(magnitude, _LARGE)
    square = root * root
    large = (-square).fma(square, 1.0)
    return magnitude.compare("olt", 1.1).select(small, large.copysign(x))
