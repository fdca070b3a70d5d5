"""The functions of one element that kernels are made of, and the combiners of reductions and scans.

`body.math(name, ...)` takes a name of `FUNCTIONS`; the tile interpreter runs its NumPy implementation and the code
generators have an entry for each. Graph ops compose everything else from these. On floats narrower than 32 bits a
function computes in f32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.errors import DTypeError
from weft.ir.types import DType, boolean, f32, i64
from weft.ops import numerics
from weft.ops.numerics import Implementation, rounded_once

Domain: TypeAlias = Literal["float", "int", "number", "bits", "any"]
Number: TypeAlias = float | int | bool

_KINDS: dict[Domain, frozenset[str]] = {
    "float": frozenset({"float"}),
    "int": frozenset({"int", "uint"}),
    "number": frozenset({"float", "int", "uint"}),
    "bits": frozenset({"int", "uint", "bool"}),
    "any": frozenset({"float", "int", "uint", "bool"}),
}


@dataclass(frozen=True)
class Function:
    """A function of single elements.

    `domain` says what its operands are: float, int, number (either), bits (integers and booleans) or any of these.
    `result` is the type of the last operand (same), a boolean, or named by a parameter `dtype` (given).
    """

    name: str
    arity: int
    numpy: Implementation
    domain: Domain
    result: Literal["same", "bool", "given"] = "same"

    def result_dtype(self, *dtypes: DType) -> DType:
        """The result's type; raises if the function does not take these operands."""
        values = dtypes[1:] if self.name == "select" else dtypes
        if len(dtypes) != self.arity or len(set(values)) > 1 or not {d.kind for d in values} <= _KINDS[self.domain]:
            operands = ", ".join(map(str, dtypes))
            raise DTypeError(f"{self.name} takes {self.arity} operands of one type ({self.domain}), got {operands}")
        return boolean if self.result == "bool" else values[-1]


def _functions(domain: Domain, arity: int, **table: Implementation) -> list[Function]:
    return [Function(name.rstrip("_"), arity, implementation, domain) for name, implementation in table.items()]


def _predicates(domain: Domain, arity: int, **table: Implementation) -> list[Function]:
    return [Function(name, arity, implementation, domain, "bool") for name, implementation in table.items()]


def _rounded(functions: list[Function]) -> list[Function]:
    return [Function(f.name, f.arity, rounded_once(f.numpy), f.domain, f.result) for f in functions]


FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in [
        *_rounded(
            [
                *_functions("number", 2, add=np.add, sub=np.subtract, mul=np.multiply, pow=numerics.power),
                *_functions("float", 2, div=np.divide, atan2=np.arctan2, copysign=np.copysign),
                *_functions("number", 1, neg=np.negative, abs=np.abs),
                *_functions("any", 2, max=np.maximum, min=np.minimum, fmax=np.fmax, fmin=np.fmin),
                *_functions("number", 2, floordiv=np.floor_divide, truncdiv=numerics.truncdiv),
                *_functions("number", 2, remainder=np.remainder, fmod=np.fmod),
                *_functions("float", 1, exp=np.exp, exp2=np.exp2, expm1=np.expm1),
                *_functions("float", 1, log=np.log, log2=np.log2, log10=np.log10, log1p=np.log1p),
                *_functions("float", 1, sqrt=np.sqrt, rsqrt=numerics.rsqrt),
                *_functions("float", 1, sin=np.sin, cos=np.cos, tan=np.tan),
                *_functions("float", 1, asin=np.arcsin, acos=np.arccos, atan=np.arctan),
                *_functions("float", 1, sinh=np.sinh, cosh=np.cosh, tanh=np.tanh),
                *_functions("float", 1, asinh=np.arcsinh, acosh=np.arccosh, atanh=np.arctanh),
                *_functions("float", 1, erf=numerics.erf, erfc=numerics.erfc, erfinv=numerics.erfinv),
                *_functions("float", 1, lgamma=numerics.lgamma, digamma=numerics.digamma, sigmoid=numerics.sigmoid),
                *_functions("float", 1, floor=np.floor, ceil=np.ceil, trunc=np.trunc, round=np.rint),
            ]
        ),
        # The neighbour of a narrow float is a narrow float: no widening here.
        *_functions("float", 2, nextafter=np.nextafter),
        *_functions("bits", 2, and_=np.bitwise_and, or_=np.bitwise_or, xor=np.bitwise_xor),
        *_functions("bits", 1, not_=np.invert),
        # A shift by the width or more leaves nothing but, on the right, copies of the sign.
        *_functions("int", 2, shl=np.left_shift, shr=np.right_shift),
        *_predicates("any", 2, eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal),
        *_predicates("any", 2, gt=np.greater, ge=np.greater_equal),
        *_predicates("float", 1, isnan=np.isnan, isinf=np.isinf),
        Function("select", 3, np.where, "any"),
        Function("cast", 1, numerics.cast, "any", "given"),
        Function("bitcast", 1, numerics.bitcast, "any", "given"),
    ]
}
"""Every function by name. `max` and `min` propagate NaN, `fmax` and `fmin` prefer the number; `floordiv` and
`remainder` round towards -∞ (Python's), `truncdiv` and `fmod` towards zero (C's); `round` takes halves to even.
Integers wrap around, and dividing one by zero gives some value."""


@dataclass(frozen=True)
class Combiner:
    """How a reduction or a scan joins two elements, and what it starts from.

    `function` names the entry of `FUNCTIONS` that joins two values. An `indexed` combiner joins pairs of a value and
    its index, and gives the index: NaN wins, and of equal values the first.
    """

    name: str
    function: str
    numpy: np.ufunc
    identity: Callable[[DType], Number]
    indexed: bool = False

    def accumulator(self, dtype: DType) -> DType:
        """The type it combines in: narrow floats are summed and multiplied in f32."""
        return f32 if self.name in ("sum", "prod") and dtype.is_float and dtype.bits < 32 else dtype

    def result_dtype(self, dtype: DType) -> DType:
        return i64 if self.indexed else dtype

    def reduce(self, x: np.ndarray, axis: int | tuple[int, ...], keepdims: bool = False) -> np.ndarray:
        """Combine along `axis` (one axis for an indexed combiner), in the type of `x`."""
        if self.indexed:
            wide: Any = x.astype(np.float32) if x.dtype in numerics.NARROW else x
            pick: Any = np.argmax if self.name == "argmax" else np.argmin
            return np.asarray(pick(wide, axis=axis, keepdims=keepdims), np.int64)
        return np.asarray(self.numpy.reduce(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def least(dtype: DType) -> Number:
    """The least value of a type, -∞ for floats: what a maximum starts from."""
    match dtype.kind:
        case "float":
            return float("-inf")
        case "int":
            return -(1 << (dtype.bits - 1))
        case _:
            return 0


def greatest(dtype: DType) -> Number:
    """The greatest value of a type, ∞ for floats: what a minimum starts from."""
    match dtype.kind:
        case "float":
            return float("inf")
        case "int":
            return (1 << (dtype.bits - 1)) - 1
        case "uint":
            return (1 << dtype.bits) - 1
        case _:
            return 1


COMBINERS: dict[str, Combiner] = {
    combiner.name: combiner
    for combiner in [
        Combiner("sum", "add", np.add, lambda dtype: 0),
        Combiner("prod", "mul", np.multiply, lambda dtype: 1),
        Combiner("max", "max", np.maximum, least),
        Combiner("min", "min", np.minimum, greatest),
        Combiner("fmax", "fmax", np.fmax, lambda dtype: float("nan") if dtype.is_float else least(dtype)),
        Combiner("fmin", "fmin", np.fmin, lambda dtype: float("nan") if dtype.is_float else greatest(dtype)),
        Combiner("and", "and", np.bitwise_and, lambda dtype: -1 if dtype.kind == "int" else greatest(dtype)),
        Combiner("or", "or", np.bitwise_or, lambda dtype: 0),
        Combiner("xor", "xor", np.bitwise_xor, lambda dtype: 0),
        Combiner("any", "or", np.logical_or, lambda dtype: False),
        Combiner("all", "and", np.logical_and, lambda dtype: True),
        Combiner("argmax", "max", np.maximum, least, indexed=True),
        Combiner("argmin", "min", np.minimum, greatest, indexed=True),
    ]
}
"""Every combiner by name."""
