"""`tl.math`: the elementary functions of fp32 and fp64, and what is made of them."""

from __future__ import annotations

from typing import Any

from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import exactly, mapped
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import broadcast_all, constant, pair, to_tensor
from weft.frontends.triton.language.reductions import max as reduce_max
from weft.frontends.triton.language.reductions import sum as reduce_sum
from weft.frontends.triton.language.values import member, tensor

FLOATS = ("fp32", "fp64")


def checked(x: Any, name: str, allowed: tuple[str, ...] = FLOATS) -> tensor:
    """An operand of one of the types that a function takes."""
    value = to_tensor(x)
    if value.dtype.name not in allowed:
        raise KernelTypeError(
            f"Expected dtype {list(allowed)} but got {value.dtype.name} in tl.{name}",
            hint=f"cast the operand: x.to(tl.{types.dtype(allowed[0]).codegen_name()})",
        )
    return value


@member
def exp(x: Any) -> tensor:
    """e**x."""
    return mapped("exp", checked(x, "exp"))


@member
def exp2(x: Any) -> tensor:
    """2**x."""
    return mapped("exp2", checked(x, "exp2"))


@member
def log(x: Any) -> tensor:
    """The natural logarithm."""
    return mapped("log", checked(x, "log"))


@member
def log2(x: Any) -> tensor:
    """The logarithm of base 2."""
    return mapped("log2", checked(x, "log2"))


@member
def cos(x: Any) -> tensor:
    """The cosine."""
    return mapped("cos", checked(x, "cos"))


@member
def sin(x: Any) -> tensor:
    """The sine."""
    return mapped("sin", checked(x, "sin"))


@member
def sqrt(x: Any) -> tensor:
    """The square root."""
    return mapped("sqrt", checked(x, "sqrt"))


@member
def sqrt_rn(x: Any) -> tensor:
    """The square root, rounded to nearest."""
    return exactly(mapped("sqrt", checked(x, "sqrt_rn", ("fp32",))))


@member
def rsqrt(x: Any) -> tensor:
    """1 / sqrt(x)."""
    return mapped("rsqrt", checked(x, "rsqrt"))


@member
def erf(x: Any) -> tensor:
    """The error function."""
    return mapped("erf", checked(x, "erf"))


@member
def floor(x: Any) -> tensor:
    """The next integer below."""
    return mapped("floor", checked(x, "floor"))


@member
def ceil(x: Any) -> tensor:
    """The next integer above."""
    return mapped("ceil", checked(x, "ceil"))


@member
def abs(x: Any) -> tensor:
    """The absolute value."""
    value = to_tensor(x)
    if value.dtype.is_ptr():
        raise KernelTypeError(f"a pointer has no absolute value: {value}")
    if value.dtype.is_int_unsigned():
        return value
    return mapped("abs", value)


def fdiv(x: Any, y: Any, ieee_rounding: Any = False) -> tensor:
    """x / y of floats."""
    a, b = to_tensor(x), to_tensor(y)
    if not a.dtype.is_floating() or not b.dtype.is_floating():
        raise KernelTypeError(f"both operands of fdiv must have floating scalar type, got {a} and {b}")
    a, b = pair(a, b)
    quotient = mapped("div", a, b)
    return exactly(quotient) if unwrap(ieee_rounding) else quotient


def div_rn(x: Any, y: Any) -> tensor:
    """x / y, rounded to nearest."""
    allowed = ("fp32",)
    a, b = pair(checked(x, "div_rn", allowed), checked(y, "div_rn", allowed))
    return exactly(mapped("div", a, b))


def fma(x: Any, y: Any, z: Any) -> tensor:
    """x * y + z, rounded once where a wider type holds the product."""
    a, b = pair(to_tensor(x), to_tensor(y))
    c, a = pair(to_tensor(z), a)
    c, b = pair(c, b)
    a, b, c = broadcast_all(a, b, c)
    element = a.dtype
    if not element.is_floating():
        return mapped("add", mapped("mul", a, b), c)
    wide = types.float64 if element.primitive_bitwidth >= 32 else types.float32
    a, b, c = (converted(value, wide, None) for value in (a, b, c))
    return converted(mapped("add", mapped("mul", a, b), c), element, None)


def umulhi(x: Any, y: Any) -> tensor:
    """The upper half of the product of two integers, taken as unsigned."""
    allowed = ("int32", "int64", "uint32", "uint64")
    numbers = [unwrap(x), unwrap(y)]
    for number in numbers:
        if isinstance(number, tensor):
            checked(number, "umulhi", allowed)
    a, b = pair(to_tensor(x), to_tensor(y))
    element = a.dtype
    if element.int_bitwidth == 32:
        wide = [converted(converted(v, types.uint32, None), types.uint64, None) for v in (a, b)]
        product = mapped("mul", *wide)
        return converted(mapped("shr", product, constant(32, types.uint64, product.sides)), element, None)
    first, second = (converted(v, types.uint64, None) for v in (a, b))
    return converted(_high_word(first, second), element, None)


def _high_word(a: tensor, b: tensor) -> tensor:
    """The upper 64 bits of a product of 64-bit numbers, from the products of their halves."""
    low_bits = constant(0xFFFFFFFF, types.uint64, a.sides)
    half = constant(32, types.uint64, a.sides)

    def low(v: tensor) -> tensor:
        return mapped("and", v, low_bits)

    def high(v: tensor) -> tensor:
        return mapped("shr", v, half)

    low_product = mapped("mul", low(a), low(b))
    middle = mapped("add", mapped("mul", high(a), low(b)), high(low_product))
    other = mapped("add", mapped("mul", low(a), high(b)), low(middle))
    return mapped("add", mapped("add", mapped("mul", high(a), high(b)), high(middle)), high(other))


@member
def cdiv(x: Any, div: Any) -> Any:
    """x / div, rounded up."""
    return (x + (div - 1)) // div


@member
def sigmoid(x: Any) -> tensor:
    """1 / (1 + e**-x)."""
    return 1 / (1 + exp(-to_tensor(x)))


@member
def softmax(x: tensor, dim: Any = None, keep_dims: Any = False, ieee_rounding: Any = False) -> tensor:
    """e**x, divided by the sum along an axis."""
    axis = 0 if unwrap(dim) is None else unwrap(dim)
    # The greatest and the sum must meet x again, whether or not the author keeps the axis.
    keep = unwrap(keep_dims) or len(x.sides) > 1
    shifted = x - reduce_max(x, axis, keep_dims=keep)
    power = exp(shifted)
    return fdiv(power, reduce_sum(power, axis, keep_dims=keep), ieee_rounding)
