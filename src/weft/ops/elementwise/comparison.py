"""Comparisons, tests of floats, and the logic of their booleans."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft.ir.types import DType, boolean, i32, u8
from weft.ops.base import op
from weft.ops.body import Body, Value
from weft.ops.elementwise.pointwise import ANY_KIND, FLOATS, NUMBERS, Pointwise, Relation, check_kinds
from weft.ops.samples import Input, Sample, binary, unary

ORDERED = (*NUMBERS, u8, boolean)


@op("eq", onnx="Equal", samples=binary(dtypes=ORDERED))
class Eq(Relation):
    """Whether two are equal; NaN equals nothing."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.equal(a, b)


@op("ne", samples=binary(dtypes=ORDERED))
class Ne(Relation):
    """Whether two differ; NaN differs from everything."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.not_equal(a, b)


@op("lt", onnx="Less", samples=binary(dtypes=ORDERED))
class Lt(Relation):
    """Whether the first is less than the second."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.less(a, b)


@op("le", onnx="LessOrEqual", samples=binary(dtypes=ORDERED))
class Le(Relation):
    """Whether the first is less than the second or equal to it."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.less_equal(a, b)


@op("gt", onnx="Greater", samples=binary(dtypes=ORDERED))
class Gt(Relation):
    """Whether the first is greater than the second."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.greater(a, b)


@op("ge", onnx="GreaterOrEqual", samples=binary(dtypes=ORDERED))
class Ge(Relation):
    """Whether the first is greater than the second or equal to it."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.greater_equal(a, b)


@op("isnan", aten="isnan.default", onnx="IsNaN", samples=unary(dtypes=FLOATS))
class IsNan(Relation):
    """Whether a float is NaN."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.isnan(x)


@op("isinf", aten="isinf.default", samples=unary(dtypes=FLOATS))
class IsInf(Relation):
    """Whether a float is ∞ or -∞."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.isinf(x)


@op("isfinite", stablehlo="is_finite", samples=unary(dtypes=FLOATS))
class IsFinite(Pointwise):
    """Whether a float is neither infinite nor NaN."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        super().result(*dtypes, **params)
        return boolean

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.isfinite(x)

    @staticmethod
    def tile(body: Body, x: Value) -> Value:
        return body.math("not", body.math("or", body.math("isnan", x), body.math("isinf", x)))


class Logical(Pointwise):
    """Logic on truth values; a number is true unless it is 0. Operands may be of different types."""

    KINDS: ClassVar[tuple[str, ...]] = ANY_KIND
    FUNCTION: ClassVar[str]

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        check_kinds(cls.name, cls.KINDS, *dtypes)
        return super().result(*(boolean for _ in dtypes), **params)

    @classmethod
    def tile(cls, body: Body, *values: Value) -> Value:
        return body.math(cls.FUNCTION, *(truth(body, value) for value in values))


def truth(body: Body, value: Value) -> Value:
    """Whether a value is not zero."""
    return value if value.dtype == boolean else body.math("ne", value, body.constant(0, value.dtype))


TRUTHS = (boolean, *FLOATS, i32)
MIXED = (Sample((Input((3, 5), dtype=boolean), Input((5,), -1, 2, dtype=i32)), dtypes=(boolean,)),)


@op("logical_and", aten="logical_and.default", onnx="And", samples=(*binary(-1, 2, TRUTHS), *MIXED))
class LogicalAnd(Logical):
    """Whether both are true."""

    FUNCTION: ClassVar[str] = "and"

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.logical_and(a, b)


@op("logical_or", aten="logical_or.default", onnx="Or", samples=(*binary(-1, 2, TRUTHS), *MIXED))
class LogicalOr(Logical):
    """Whether one or both are true."""

    FUNCTION: ClassVar[str] = "or"

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.logical_or(a, b)


@op("logical_xor", aten="logical_xor.default", onnx="Xor", samples=(*binary(-1, 2, TRUTHS), *MIXED))
class LogicalXor(Logical):
    """Whether exactly one is true."""

    FUNCTION: ClassVar[str] = "xor"

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.logical_xor(a, b)


@op("logical_not", aten="logical_not.default", onnx="Not", samples=unary(-1, 2, TRUTHS))
class LogicalNot(Logical):
    """Whether it is false."""

    FUNCTION: ClassVar[str] = "not"

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.logical_not(x)
