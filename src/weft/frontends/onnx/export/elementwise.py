"""Writers of elementwise ops: most have an operator, the others are short programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.frontends.onnx.export.writer import WRITERS, Writer, require, writes
from weft.ir.types import boolean, f64
from weft.ops.base import GraphOp

_OPERATORS = {
    **{"abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "asin": "Asin", "asinh": "Asinh", "atan": "Atan"},
    **{"atanh": "Atanh", "bitwise_and": "BitwiseAnd", "bitwise_not": "BitwiseNot", "bitwise_or": "BitwiseOr"},
    **{"bitwise_xor": "BitwiseXor", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "eq": "Equal"},
    **{"erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "hardswish": "HardSwish"},
    **{
        "isinf": "IsInf",
        "isnan": "IsNaN",
        "le": "LessOrEqual",
        "log": "Log",
        "logical_and": "And",
        "logical_not": "Not",
    },
    **{"logical_or": "Or", "logical_xor": "Xor", "lt": "Less", "maximum": "Max", "minimum": "Min", "mish": "Mish"},
    **{"mul": "Mul", "neg": "Neg", "pow": "Pow", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round"},
    **{"sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan"},
    **{"tanh": "Tanh", "where": "Where", "copy": "Identity"},
}
"""Ops that are one operator, which takes the operands as they are."""


_EVEN = 17.0
"""From here on a number and its softplus are the same in f32."""


def _as_operator(name: str) -> Any:
    def write(w: Writer, op: GraphOp) -> str:
        return w.add(name, *(w.x(op, place) for place in range(len(op.operands))))

    return write


for _name, _operator in _OPERATORS.items():
    WRITERS[f"graph.{_name}"] = _as_operator(_operator)


def _number(w: Writer, op: GraphOp, value: float) -> str:
    """A scalar of the type of an op's first operand."""
    return w.constant(value, w.tensor(op).dtype)


@writes("cast")
def cast(w: Writer, op: GraphOp) -> str:
    return w.add("Cast", w.x(op), to=w.element_type(op.params["dtype"], op))


@writes("ne")
def not_equal(w: Writer, op: GraphOp) -> str:
    return w.add("Not", w.add("Equal", w.x(op), w.x(op, 1)))


@writes("isfinite")
def is_finite(w: Writer, op: GraphOp) -> str:
    return w.add("Not", w.add("Or", w.add("IsInf", w.x(op)), w.add("IsNaN", w.x(op))))


@writes("clamp")
def clamp(w: Writer, op: GraphOp) -> str:
    def bound(value: float | None) -> str:
        return "" if value is None or math.isinf(value) else _number(w, op, value)

    low, high = bound(op.params["low"]), bound(op.params["high"])
    return w.add("Clip", w.x(op), low, high) if low or high else w.add("Identity", w.x(op))


@writes("clamp_tensor")
def clamp_tensor(w: Writer, op: GraphOp) -> str:
    return w.add("Min", w.add("Max", w.x(op), w.x(op, 1)), w.x(op, 2))


@writes("rsqrt")
def rsqrt(w: Writer, op: GraphOp) -> str:
    return w.add("Reciprocal", w.add("Sqrt", w.x(op)))


@writes("silu")
def silu(w: Writer, op: GraphOp) -> str:
    return w.add("Mul", w.x(op), w.add("Sigmoid", w.x(op)))


@writes("gelu")
def gelu(w: Writer, op: GraphOp) -> str:
    return w.add("Gelu", w.x(op), approximate=op.params.get("approximate", "none"))


@writes("leaky_relu")
def leaky_relu(w: Writer, op: GraphOp) -> str:
    return w.add("LeakyRelu", w.x(op), alpha=float(op.params.get("slope", 0.01)))


@writes("elu")
def elu(w: Writer, op: GraphOp) -> str:
    alpha, scale, inner = (float(op.params.get(name, 1.0)) for name in ("alpha", "scale", "input_scale"))
    require(op, inner == 1, "with a factor inside")
    if scale == 1:
        return w.add("Elu", w.x(op), alpha=alpha)
    return w.add("Selu", w.x(op), alpha=alpha, gamma=scale)


@writes("hardsigmoid")
def hardsigmoid(w: Writer, op: GraphOp) -> str:
    return w.add("HardSigmoid", w.x(op), alpha=1 / 6, beta=0.5)


@writes("softplus")
def softplus(w: Writer, op: GraphOp) -> str:
    beta, threshold = float(op.params.get("beta", 1.0)), float(op.params.get("threshold", 20.0))
    factor = _number(w, op, beta)
    scaled = w.x(op) if beta == 1 else w.add("Mul", w.x(op), factor)
    made = w.add("Softplus", scaled)
    made = made if beta == 1 else w.add("Div", made, factor)
    if threshold >= _EVEN:
        return made
    return w.add("Where", w.add("Greater", scaled, _number(w, op, threshold)), w.x(op), made)


@writes("log_sigmoid")
def log_sigmoid(w: Writer, op: GraphOp) -> str:
    return w.add("Neg", w.add("Softplus", w.add("Neg", w.x(op))))


@writes("exp2")
def exp2(w: Writer, op: GraphOp) -> str:
    return w.add("Pow", _number(w, op, 2.0), w.x(op))


@writes("expm1")
def expm1(w: Writer, op: GraphOp) -> str:
    return w.add("Sub", w.add("Exp", w.x(op)), _number(w, op, 1.0))


@writes("log1p")
def log1p(w: Writer, op: GraphOp) -> str:
    return w.add("Log", w.add("Add", w.x(op), _number(w, op, 1.0)))


@writes("log2", "log10")
def log_of_base(w: Writer, op: GraphOp) -> str:
    return w.add("Div", w.add("Log", w.x(op)), _number(w, op, math.log(float(op.name.removeprefix("graph.log")))))


@writes("erfc")
def erfc(w: Writer, op: GraphOp) -> str:
    return w.add("Sub", _number(w, op, 1.0), w.add("Erf", w.x(op)))


def _truncated(w: Writer, name: str) -> str:
    return w.add("Mul", w.add("Sign", name), w.add("Floor", w.add("Abs", name)))


@writes("trunc")
def trunc(w: Writer, op: GraphOp) -> str:
    return _truncated(w, w.x(op))


@writes("truncdiv")
def truncdiv(w: Writer, op: GraphOp) -> str:
    quotient = w.add("Div", w.x(op), w.x(op, 1))
    return _truncated(w, quotient) if w.tensor(op).dtype.is_float else quotient


@writes("hypot")
def hypot(w: Writer, op: GraphOp) -> str:
    a, b = w.x(op), w.x(op, 1)
    return w.add("Sqrt", w.add("Add", w.add("Mul", a, a), w.add("Mul", b, b)))


@writes("floordiv")
def floordiv(w: Writer, op: GraphOp) -> str:
    a, b = w.x(op), w.x(op, 1)
    if w.tensor(op).dtype.is_float:
        return w.add("Floor", w.add("Div", a, b))
    return w.add("Div", w.add("Sub", a, w.add("Mod", a, b)), b)


@writes("remainder")
def remainder(w: Writer, op: GraphOp) -> str:
    a, b = w.x(op), w.x(op, 1)
    if not w.tensor(op).dtype.is_float:
        return w.add("Mod", a, b)
    return w.add("Sub", a, w.add("Mul", w.add("Floor", w.add("Div", a, b)), b))


@writes("fmod")
def fmod(w: Writer, op: GraphOp) -> str:
    return w.add("Mod", w.x(op), w.x(op, 1), fmod=1)


@writes("full")
def full(w: Writer, op: GraphOp) -> str:
    tensor = w.result(op)
    w.element_type(tensor.dtype, op)
    value = w.constant(op.params["value"], tensor.dtype)
    return value if not tensor.rank else w.add("Expand", value, w.shape(tensor.shape))


@writes("iota")
def iota(w: Writer, op: GraphOp) -> str:
    tensor = w.result(op)
    dim: int = op.params["dim"]
    require(op, tensor.dtype != boolean, "of booleans")
    start, step, size = op.params.get("start", 0), op.params.get("step", 1), tensor.shape[dim]
    whole = not tensor.dtype.is_float and isinstance(start, int) and isinstance(step, int)
    wide = np.int64 if whole else np.float64
    count = w.add("Squeeze", w.size(size), w.ints([0]))
    line = w.add("Range", w.constant(0, np.int64), count, w.constant(1, np.int64))
    if not whole:
        line = w.add("Cast", line, to=w.element_type(f64, op))
    line = line if step == 1 else w.add("Mul", line, w.constant(step, wide))
    line = line if start == 0 else w.add("Add", line, w.constant(start, wide))
    if tensor.dtype.numpy != wide:
        line = w.add("Cast", line, to=w.element_type(tensor.dtype, op))
    if tensor.rank == 1:
        return line
    line = w.add("Reshape", line, w.shape([size if d == dim else 1 for d in range(tensor.rank)]))
    return w.add("Expand", line, w.shape(tensor.shape))
