"""What the elementwise ops share: checked operands, and rules that are a single function or that widen to f32."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ClassVar

from weft.errors import DTypeError
from weft.ir.types import DType, bf16, f16, f32, f64, i32, i64, u8
from weft.ops.base import Comparison, Elementwise, Precision
from weft.ops.body import Body, Value

FLOATS = (f32, f64, bf16, f16)
INTEGERS = (i32, i64, u8)
NUMBERS = (*FLOATS, i32, i64)

NUMBER_KINDS = ("float", "int", "uint")
BIT_KINDS = ("int", "uint", "bool")
ANY_KIND = ("float", "int", "uint", "bool")


class Pointwise(Elementwise):
    """An elementwise op on numbers, all of one type; `KINDS` says of which kinds."""

    KINDS: ClassVar[tuple[str, ...]] = NUMBER_KINDS

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        _check_call(cls, len(dtypes), tuple(params))
        check_kinds(cls.name, cls.KINDS, *dtypes)
        return super().result(*dtypes)


@cache  # of calls that are right: a model has thousands of few forms
def _check_call(cls: type[Any], operands: int, params: tuple[str, ...]) -> None:
    """Raise a `TypeError` unless an op takes so many operands, and parameters of these names."""
    inspect.signature(cls.reference).bind(*(None,) * operands, **dict.fromkeys(params))


def check_kinds(name: str, kinds: tuple[str, ...], *dtypes: DType) -> None:
    """Raise unless every type is of one of the kinds."""
    for dtype in dtypes:
        if dtype.kind not in kinds:
            raise DTypeError(f"{name} takes operands of kind {' or '.join(kinds)}, got {dtype}", hint="insert a cast")


class Primitive(Pointwise):
    """An op that is one function of `weft.tile.functions`: that of its own name, or `FUNCTION`."""

    FUNCTION: ClassVar[str] = ""

    @classmethod
    def tile(cls, body: Body, *values: Value) -> Value:
        return body.math(cls.FUNCTION or cls.name.removeprefix("graph."), *values)


class FloatFunction(Primitive):
    """A function of real numbers."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)
    AUTOCAST: ClassVar[Precision] = "wide"


class Relation(Comparison, Primitive):
    """A function that gives a boolean."""

    KINDS: ClassVar[tuple[str, ...]] = ANY_KIND


def in_f32(rule: Callable[..., Value]) -> Callable[..., Value]:
    """Let a lowering rule of several functions compute narrow floats in f32, and round its result once."""

    @wraps(rule)
    def widened(body: Body, *values: Value, **params: Any) -> Value:
        narrow = next((v.dtype for v in values if v.dtype.is_float and v.dtype.bits < 32), None)
        if narrow is None:
            return rule(body, *values, **params)
        result = rule(body, *(body.cast(v, f32) if v.dtype == narrow else v for v in values), **params)
        return body.cast(result, narrow) if result.dtype == f32 else result

    return widened
