"""The functions of `weft.tile.functions` as LLVM code, on scalars and on vectors of any number of lanes.

`emit_function` is what a code generator calls. Floats narrower than 32 bits arrive widened to `float` (`cast.py`), so
the algorithms are written for `float` and `double`. They are vector code without calls, but for gamma functions,
`tan` and `erfc` of f64, and f64 on processors without fused multiply-adds: these go to the C library lane by lane.
Accuracy and speed are asserted in `tests/backends/llvm/test_math.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.llvm.builder import Function
from weft.backends.llvm.math_double import DOUBLE_ONLY, SINGLE_THROUGH_DOUBLE
from weft.backends.llvm.math_erf import erf
from weft.backends.llvm.math_exp import EXPONENTIALS
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.math_float import FLOAT, FloatFunction, next_after
from weft.backends.llvm.math_integer import BOOLEAN, INTEGER
from weft.backends.llvm.math_log import LOGARITHMS
from weft.backends.llvm.math_power import power
from weft.backends.llvm.math_series import SERIES
from weft.backends.llvm.math_trig import TRIGONOMETRY
from weft.backends.llvm.math_wide import WIDE
from weft.backends.llvm.values import V
from weft.errors import DTypeError
from weft.ir.types import DType

SINGLE: Mapping[str, FloatFunction] = {
    **FLOAT,
    **EXPONENTIALS,
    **LOGARITHMS,
    **TRIGONOMETRY,
    **WIDE,
    **SINGLE_THROUGH_DOUBLE,
    "erf": erf,
    "pow": power,
}
BY_LIBRARY: Mapping[str, FloatFunction] = {**FLOAT, **DOUBLE_ONLY}
# What has fewer digits as a series; that of a gamma function takes as long as the library, too.
_FEWER_DIGITS = ("tan", "erfc", "lgamma", "digamma")
DOUBLE: Mapping[str, FloatFunction] = {
    **BY_LIBRARY,
    **{name: SERIES[name] for name in DOUBLE_ONLY if name not in _FEWER_DIGITS},
}


def emit_function(b: Function, name: str, args: Sequence[V], dtype: DType) -> V:
    """Apply a function elementwise to operands of type `dtype`, held as registers hold it; comparisons give i1."""
    if name == "select":
        condition, yes, no = args
        return b.select(condition, yes, no)
    if name == "nextafter":
        return next_after(b, args, dtype)
    if dtype.is_float:
        double = BY_LIBRARY if "fma" in b.module.lacks else DOUBLE
        table = double if args[0].element == "double" else SINGLE
        if name in table:
            return table[name](*(E(b, arg) for arg in args)).v
    elif dtype.is_integer and name in INTEGER:
        return INTEGER[name](b, args, dtype)
    elif dtype.kind == "bool" and name in BOOLEAN:
        return BOOLEAN[name](b, args, dtype)
    raise DTypeError(f"there is no code for {name} on {dtype}", hint="cast the operand first")
