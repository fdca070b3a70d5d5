"""Elementwise operators: torch's promotion of operands, then one graph op or a few."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten, register
from weft.frontends.torch.dtypes import HALF, Operand, result_type
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_divisor, check_that
from weft.ir.expr import product
from weft.ir.types import DType, boolean, f32, tensor_of
from weft.ops.base import REGISTRY, Comparison, Elementwise

# What arithmetic on booleans is.
_BOOLEAN = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
_DIVISIONS = ("floordiv", "truncdiv", "remainder", "fmod")
_INTEGERS_STAY = ("floor", "ceil", "trunc", "round")


def apply(b: ImportBuilder, name: str, *operands: Operand, dtype: DType | None = None, **params: Any) -> SSAValue:
    """The op on operands that are brought to a common type: `dtype`, or that of the node's result."""
    dtype = dtype or b.result.dtype
    if dtype == boolean and name in _BOOLEAN:
        name = _BOOLEAN[name]
    if name in _DIVISIONS and not dtype.is_float:
        check_divisor(b, operands[1], product(b.result.shape))
    compute = f32 if dtype in HALF and _is_finer(operands) else dtype
    return b.to(b.emit(name, *(b.operand(operand, compute) for operand in operands), **params), dtype)


def _is_finer(operands: tuple[Operand, ...]) -> bool:
    """Whether an operand without dimensions would lose digits in a half float; torch keeps them while it computes."""
    for operand in operands:
        if isinstance(operand, SSAValue):
            tensor = tensor_of(operand.type)
            if not tensor.rank and tensor.dtype.is_float and tensor.dtype.bits > 16:
                return True
        elif not isinstance(operand, bool | int | float) or not _is_short(operand):
            return True
    return False


def _is_short(number: float) -> bool:
    """Whether a number is a power of two or a small integer."""
    return abs(math.frexp(number)[0]) in (0.0, 0.5) or (float(number).is_integer() and abs(number) < 256)


def compare(b: ImportBuilder, name: str, *operands: Operand) -> SSAValue:
    """A comparison in the common type of the operands, or finer."""
    dtype = result_type(operands)
    if dtype in HALF and _is_finer(operands):
        dtype = f32
    return b.emit(name, *(b.operand(operand, dtype) for operand in operands))


def _from_registry(name: str, cls: type[Elementwise]) -> Any:
    def convert(b: ImportBuilder, *operands: Any) -> SSAValue:
        if issubclass(cls, Comparison):
            dtype = result_type(operands)
            dtype = dtype if dtype.is_float or name not in ("isnan", "isinf") else f32
            return b.emit(name, *(b.operand(operand, dtype) for operand in operands))
        if name.startswith("logical_"):
            return b.emit(name, *operands)
        if name in _INTEGERS_STAY and not b.result.dtype.is_float:
            if b.result.dtype == boolean:
                raise UnsupportedError("a boolean that is rounded, which torch refuses")
            return operands[0]
        return apply(b, name, *operands)

    return convert


def _by_name(function: Callable[..., SSAValue], name: str, b: ImportBuilder, *operands: Operand) -> SSAValue:
    return function(b, name, *operands)


for _spec in REGISTRY:
    if issubclass(_spec.cls, Elementwise):
        for _name in _spec.aten:
            register(_name, _from_registry(_spec.name, _spec.cls))

for _name, _overloads in {
    "mul": ("mul.Tensor", "mul.Scalar"),
    "div": ("div.Tensor", "div.Scalar", "true_divide.Tensor"),
    "floordiv": ("floor_divide.default", "floor_divide.Scalar"),
    "remainder": ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"),
    "fmod": ("fmod.Tensor", "fmod.Scalar"),
    "atan2": ("atan2.default",),
    "maximum": ("maximum.default",),
    "minimum": ("minimum.default",),
    "hypot": ("hypot.default",),
    "nextafter": ("nextafter.default",),
    "copysign": ("copysign.Tensor", "copysign.Scalar"),
    "bitwise_and": ("bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_and.Scalar_Tensor"),
    "bitwise_or": ("bitwise_or.Tensor", "bitwise_or.Scalar", "bitwise_or.Scalar_Tensor"),
    "bitwise_xor": ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Scalar_Tensor"),
    "shl": ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Tensor", "__lshift__.Scalar"),
    "shr": (
        "bitwise_right_shift.Tensor",
        "bitwise_right_shift.Tensor_Scalar",
        "__rshift__.Tensor",
        "__rshift__.Scalar",
    ),
}.items():
    for _overload in _overloads:
        register(_overload, partial(_by_name, apply, _name))

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in (f"{_name}.Tensor", f"{_name}.Scalar"):
        register(_overload, partial(_by_name, compare, _name))


@aten("fmax")
def fmax(b: ImportBuilder, x: Operand, y: Operand) -> SSAValue:
    return apply(b, "fmax" if b.result.dtype.is_float else "maximum", x, y)


@aten("prims.fma.default")
def multiply_add(b: ImportBuilder, x: Operand, y: Operand, z: Operand) -> SSAValue:
    """x · y + z as eager computes it on a CPU: rounded twice."""
    return apply(b, "add", apply(b, "mul", x, y), z)


@aten("fmin")
def fmin(b: ImportBuilder, x: Operand, y: Operand) -> SSAValue:
    return apply(b, "fmin" if b.result.dtype.is_float else "minimum", x, y)


@aten("add.Tensor", "add.Scalar")
def add(b: ImportBuilder, x: Operand, y: Operand, alpha: bool | int | float = 1) -> SSAValue:
    return apply(b, "add", x, _scaled(b, y, alpha))


@aten("sub.Tensor", "sub.Scalar")
def sub(b: ImportBuilder, x: Operand, y: Operand, alpha: bool | int | float = 1) -> SSAValue:
    _check_difference(b, x, y)
    return apply(b, "sub", x, _scaled(b, y, alpha))


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(b: ImportBuilder, x: Operand, y: Operand, alpha: bool | int | float = 1) -> SSAValue:
    _check_difference(b, x, y)
    return apply(b, "sub", y, _scaled(b, x, alpha))


def _check_difference(b: ImportBuilder, *operands: Operand) -> None:
    """Booleans have none: torch has other operators for them."""
    if any(b.dtype(each) == boolean if isinstance(each, SSAValue) else isinstance(each, bool) for each in operands):
        raise UnsupportedError("a difference of booleans, which torch refuses")


def _scaled(b: ImportBuilder, value: Operand, alpha: bool | int | float) -> Operand:
    if alpha == 1:
        return value
    if isinstance(value, bool | int | float):
        return value * alpha
    dtype = f32 if b.result.dtype in HALF else b.result.dtype
    return apply(b, "mul", value, alpha, dtype=dtype)


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: ImportBuilder, x: Operand, y: Operand, rounding_mode: str | None = None) -> SSAValue:
    return apply(b, {None: "div", "trunc": "truncdiv", "floor": "floordiv"}[rounding_mode], x, y)


@aten("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(b: ImportBuilder, x: Operand, y: Operand) -> SSAValue:
    return apply(b, "pow", x, y)


@aten("pow.Tensor_Scalar")
def pow_scalar(b: ImportBuilder, x: SSAValue, exponent: bool | int | float) -> SSAValue:
    if b.result.dtype.is_float:
        if exponent == 2:
            return apply(b, "mul", x, x)
        if exponent == 0.5:
            return apply(b, "sqrt", x)
        if exponent == -0.5:
            return apply(b, "rsqrt", x)
        if exponent == -1:
            return apply(b, "reciprocal", x)
        if exponent == 1:
            return b.to(x, b.result.dtype)
    elif exponent < 0:
        check_that(b, "power", f"integers have no power of {exponent}", b.number(True, boolean))
    return apply(b, "pow", x, exponent)


@aten("ldexp.Tensor")
def ldexp(b: ImportBuilder, x: Operand, exponent: Operand) -> SSAValue:
    return apply(b, "mul", x, apply(b, "exp2", exponent, dtype=b.result.dtype))


@aten("round.decimals")
def round_decimals(b: ImportBuilder, x: SSAValue, decimals: int = 0) -> SSAValue:
    if not b.result.dtype.is_float:
        raise UnsupportedError("rounding integers to decimals")
    wide = b.wide(x)
    scale = b.number(10.0 ** abs(decimals), b.dtype(wide))
    up, down = ("mul", "div") if decimals >= 0 else ("div", "mul")
    return b.emit(down, b.emit("round", b.emit(up, wide, scale)), scale)


@aten("signbit")
def signbit(b: ImportBuilder, x: SSAValue) -> SSAValue:
    dtype = b.dtype(x)
    if dtype == boolean:
        return b.number(False, boolean) if not b.rank(x) else b.zeros(b.result)
    if dtype.is_float:
        x = b.emit("copysign", b.number(1.0, dtype), x)
    return b.emit("lt", x, b.number(0, dtype))


@aten("angle")
def angle(b: ImportBuilder, x: SSAValue) -> SSAValue:
    dtype = b.result.dtype
    x = b.to(x, dtype)
    zero = b.number(0.0, dtype)
    turned = b.emit("where", b.emit("lt", x, zero), b.number(math.pi, dtype), zero)
    return b.emit("where", b.emit("isnan", x), x, turned)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(b: ImportBuilder, condition: SSAValue, yes: Operand, no: Operand) -> SSAValue:
    dtype = b.result.dtype
    return b.emit("where", b.to(condition, boolean), b.operand(yes, dtype), b.operand(no, dtype))


@aten("clamp", "hardtanh")
def clamp(
    b: ImportBuilder, x: SSAValue, low: int | float | None = None, high: int | float | None = None, **bounds: Any
) -> SSAValue:
    low, high = bounds.get("min", low), bounds.get("max", high)
    if b.node.target.__name__.startswith("hardtanh"):
        low, high = -1 if low is None else low, 1 if high is None else high
    dtype = b.result.dtype
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = apply(b, name, x, bound, dtype=dtype)
    return b.to(x, dtype)


@aten("clamp.Tensor")
def clamp_tensor(
    b: ImportBuilder, x: SSAValue, low: SSAValue | None = None, high: SSAValue | None = None, **bounds: Any
) -> SSAValue:
    return clamp_by(b, x, bounds.get("min", low), bounds.get("max", high))


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(b: ImportBuilder, x: SSAValue, low: Operand) -> SSAValue:
    return clamp_by(b, x, low, None)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(b: ImportBuilder, x: SSAValue, high: Operand) -> SSAValue:
    return clamp_by(b, x, None, high)


def clamp_by(b: ImportBuilder, x: SSAValue, low: Operand | None, high: Operand | None) -> SSAValue:
    """`x` kept between bounds that are tensors or numbers."""
    value = x if low is None else apply(b, "maximum", x, low)
    return b.to(value, b.result.dtype) if high is None else apply(b, "minimum", value, high)


@aten("gelu")
def gelu(b: ImportBuilder, x: SSAValue, approximate: str = "none") -> SSAValue:
    return b.emit("gelu", x, approximate=approximate)


@aten("elu")
def elu(b: ImportBuilder, x: SSAValue, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> SSAValue:
    return b.emit("elu", x, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))


@aten("leaky_relu")
def leaky_relu(b: ImportBuilder, x: SSAValue, slope: float = 0.01) -> SSAValue:
    return b.emit("leaky_relu", x, slope=float(slope))


@aten("softplus")
def softplus(b: ImportBuilder, x: SSAValue, beta: float = 1, threshold: float = 20) -> SSAValue:
    return b.emit("softplus", x, beta=float(beta), threshold=float(threshold))
