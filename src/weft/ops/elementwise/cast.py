"""Changes of the element type: of the value, or of how its bits are read."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft.errors import DTypeError
from weft.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from weft.ops import numerics
from weft.ops.base import Precision, op
from weft.ops.body import Body, Value
from weft.ops.elementwise.pointwise import ANY_KIND, Pointwise, check_kinds
from weft.ops.graph import GraphBuilder
from weft.ops.rules import Gradients, Values
from weft.ops.samples import Input, Sample, unary

SOURCES = (f32, f64, bf16, f16, i32, i64, boolean)
TARGETS = (f32, f64, bf16, f16, i64, i8, u8, boolean)


@op(
    "cast",
    stablehlo="convert",
    samples=[
        # A negative float has no value in an unsigned type, so it is not a sample.
        Sample((Input(shape, 0 if dtype == u8 else -100, 100),), {"dtype": dtype}, SOURCES)
        for dtype in TARGETS
        for shape in [(), (7, 9), (2, 0)]
    ],
)
class Cast(Pointwise):
    """The value in another type: floats to integers towards zero, anything to boolean by `!= 0`, integers wrap around.

    A float that the integer type cannot hold gives some value.
    """

    AUTOCAST: ClassVar[Precision] = "wide"
    KINDS: ClassVar[tuple[str, ...]] = ANY_KIND

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        super().result(*dtypes, **params)
        check_kinds(cls.name, cls.KINDS, params["dtype"])
        return params["dtype"]

    @staticmethod
    def reference(x: np.ndarray, dtype: DType) -> np.ndarray:
        return numerics.cast(x, dtype.numpy)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dtype: DType) -> Gradients:
        source = b.tensor(operands[0]).dtype
        return (b.cast(grads[0], dtype=source) if source.is_float else None,)

    @staticmethod
    def tile(body: Body, x: Value, dtype: DType) -> Value:
        return body.cast(x, dtype)


@op("reduce_precision", samples=unary(-100, 100, dtypes=(bf16, f16, f32)))
class ReducePrecision(Pointwise):
    """The value as memory would hold it. Inside a kernel narrow floats are computed in f32, and rounded when stored."""

    AUTOCAST: ClassVar[Precision] = "wide"
    KINDS: ClassVar[tuple[str, ...]] = ("float",)

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (grads[0],)

    @staticmethod
    def tile(body: Body, x: Value) -> Value:
        return body.rounded(x, x.dtype)


@op(
    "bitcast",
    samples=(
        *unary(dtypes=(f32,), dtype=i32),
        *unary(dtypes=(f64,), dtype=i64),
        *unary(dtypes=(bf16, f16), dtype=i16),
        *unary(low=-100, high=100, dtypes=(i32,), dtype=f32),
        *unary(low=-100, high=100, dtypes=(i8,), dtype=u8),
    ),
)
class Bitcast(Pointwise):
    """The same bits read as another type of the same width."""

    AUTOCAST: ClassVar[Precision] = "wide"
    KINDS: ClassVar[tuple[str, ...]] = ("float", "int", "uint")

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        source, target = super().result(*dtypes, **params), params["dtype"]
        check_kinds(cls.name, cls.KINDS, target)
        if source.bits != target.bits:
            raise DTypeError(f"bitcast from {source} to {target}", hint="both types need the same number of bits")
        return target

    @staticmethod
    def reference(x: np.ndarray, dtype: DType) -> np.ndarray:
        return numerics.bitcast(x, dtype.numpy)

    @staticmethod
    def tile(body: Body, x: Value, dtype: DType) -> Value:
        return body.bitcast(x, dtype)
