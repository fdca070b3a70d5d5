"""Elementwise arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.types import bf16, f16, f32, f64, i32, i64
from weft.ops.base import Elementwise, op
from weft.ops.body import Body, Value
from weft.ops.samples import binary, unary

FLOATS = (f32, f64, bf16, f16)
NUMBERS = (*FLOATS, i32, i64)


@op("add", onnx="Add", stablehlo="add", samples=binary(dtypes=NUMBERS))
class Add(Elementwise):
    """Sum."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.add(a, b)

    @staticmethod
    def vjp(b: Any, grad: Any, x: Any, y: Any, out: Any) -> Any:
        return grad, grad

    @staticmethod
    def tile(body: Body, a: Value, b: Value) -> Value:
        return body.math("add", a, b)


@op("exp", aten="exp", onnx="Exp", stablehlo="exponential", samples=unary(dtypes=FLOATS))
class Exp(Elementwise):
    """e to the power x."""

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    @staticmethod
    def vjp(b: Any, grad: Any, x: Any, out: Any) -> Any:
        return (b.mul(grad, out),)

    @staticmethod
    def tile(body: Body, x: Value) -> Value:
        return body.math("exp", x)
