"""Operators on complex tensors, part by part. Targets that are not here are left to torch when they meet one."""

# Arguments of operators are nested lists of anything.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import CONVERTERS, Converter, full_name
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.complex_numbers import Complex, lifted
from weft.ir.expr import Expr

COMPLEX_CONVERTERS: dict[str, Converter] = {}
"""Like `CONVERTERS`, for calls that have complex operands or results."""

Operand = Complex | SSAValue | complex | Expr

# What these do to a real tensor they do to both parts; tensors that are not complex are indices or masks.
_BY_PARTS = (
    *("alias", "clone", "detach", "lift_fresh_copy", "contiguous", "neg", "_neg_view"),
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose.int", "t", "unsqueeze", "repeat"),
    *("squeeze", "squeeze.dim", "squeeze.dims", "slice.Tensor", "select.int", "split_with_sizes", "split.Tensor"),
    *("unbind.int", "flip", "roll", "diagonal", "as_strided", "unfold", "index.Tensor", "index_select", "gather"),
    *("view_copy", "expand_copy", "permute_copy", "alias_copy", "slice_copy.Tensor", "diagonal_copy"),
    *("as_strided_copy", "unbind_copy.int", "squeeze_copy", "unsqueeze_copy", "transpose_copy.int"),
    *("sum", "sum.dim_IntList", "mean", "mean.dim", "cumsum"),
    *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
)
# Here real tensors are values too, with an imaginary part of 0.
_BY_PARTS_OF_ALL = ("cat", "stack", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")


def complex_aten(*names: str) -> Any:
    """Register a converter for calls that have complex operands or results."""

    def decorate(function: Converter) -> Converter:
        for name in names:
            COMPLEX_CONVERTERS[full_name(name)] = function
        return function

    return decorate


def _part(value: Any, which: int) -> Any:
    """The real or the imaginary part of every complex value among arguments."""
    if isinstance(value, Complex):
        return value.imag if which else value.real
    if isinstance(value, list | tuple):
        return type(value)(_part(item, which) for item in value)
    return value


def _joined(b: ImportBuilder, real: Any, imag: Any) -> Any:
    if isinstance(real, tuple):
        return tuple(Complex(b, pair) for pair in zip(real, imag, strict=True))
    return Complex(b, (real, imag))


def by_parts(b: ImportBuilder, *args: Any, **options: Any) -> Any:
    """The real operator on the real parts and on the imaginary parts."""
    converter = CONVERTERS[str(b.node.target)]
    return _joined(b, *(converter(b, *(_part(arg, which) for arg in args), **options) for which in (0, 1)))


def by_parts_of_all(b: ImportBuilder, *args: Any, **options: Any) -> Any:
    """The same, where real tensors count as complex ones."""

    def complexed(value: Any) -> Any:
        if isinstance(value, SSAValue):
            zero = b.expand(b.number(0.0, b.result.dtype), b.shape(value))
            return Complex(b, (b.to(value, b.result.dtype), zero))
        return [complexed(item) for item in value] if isinstance(value, list | tuple) else value

    tensors = 1 if isinstance(args[0], list) else 2
    values = [complexed(arg) for arg in args[:tensors]]
    return by_parts(b, *values, *args[tensors:], **options)


complex_aten(*_BY_PARTS)(by_parts)
complex_aten(*_BY_PARTS_OF_ALL)(by_parts_of_all)


@complex_aten("constant_pad_nd")
def pad(b: ImportBuilder, x: Complex, padding: Sequence[Any], value: complex = 0) -> Complex:
    pad_part = CONVERTERS["aten.constant_pad_nd.default"]
    number = complex(value)
    return Complex(b, (pad_part(b, x.real, padding, number.real), pad_part(b, x.imag, padding, number.imag)))


@complex_aten("add.Tensor", "add.Scalar")
def add(b: ImportBuilder, x: Operand, y: Operand, alpha: complex = 1) -> Complex:
    return _each(b, "add", x, y if alpha == 1 else mul(b, y, alpha))


@complex_aten("sub.Tensor", "sub.Scalar")
def sub(b: ImportBuilder, x: Operand, y: Operand, alpha: complex = 1) -> Complex:
    return _each(b, "sub", x, y if alpha == 1 else mul(b, y, alpha))


def _each(b: ImportBuilder, name: str, x: Operand, y: Operand) -> Complex:
    dtype = b.result.dtype
    left, right = lifted(b, x, dtype), lifted(b, y, dtype)
    return Complex(b, (b.emit(name, left.real, right.real), b.emit(name, left.imag, right.imag)))


@complex_aten("mul.Tensor", "mul.Scalar")
def mul(b: ImportBuilder, x: Operand, y: Operand) -> Complex:
    dtype = b.result.dtype
    if _is_real(x):
        x, y = y, x
    left, right = lifted(b, x, dtype), lifted(b, y, dtype)
    if _is_real(y):
        return Complex(b, (b.emit("mul", left.real, right.real), b.emit("mul", left.imag, right.real)))
    return product(b, "mul", left, right)


def _is_real(value: Operand) -> bool:
    return not isinstance(value, Complex) and (not isinstance(value, complex) or value.imag == 0)


def product(b: ImportBuilder, name: str, x: Complex, y: Complex) -> Complex:
    """The product, where `name` multiplies real ones: elements, or matrices."""
    real = b.emit("sub", b.emit(name, x.real, y.real), b.emit(name, x.imag, y.imag))
    imag = b.emit("add", b.emit(name, x.real, y.imag), b.emit(name, x.imag, y.real))
    return Complex(b, (real, imag))


@complex_aten("mm", "bmm")
def matmul(b: ImportBuilder, x: Complex, y: Complex) -> Complex:
    return product(b, "dot", x, y)


@complex_aten("div.Tensor", "div.Scalar")
def div(b: ImportBuilder, x: Operand, y: Operand) -> Complex:
    dtype = b.result.dtype
    left, right = lifted(b, x, dtype), lifted(b, y, dtype)
    if _is_real(y):
        return Complex(b, (b.emit("div", left.real, right.real), b.emit("div", left.imag, right.real)))
    # Smith's way, which torch takes too: squares neither overflow nor vanish, what is divided by infinity is 0, and by
    # 0 each part is divided by itself.
    upright = b.emit("ge", b.emit("abs", right.real), b.emit("abs", right.imag))
    greater, lesser = (b.emit("where", upright, *pair) for pair in ((right.real, right.imag), (right.imag, right.real)))
    nothing = b.emit("eq", greater, b.number(0.0, right.dtype))
    ratio = b.emit("where", nothing, lesser, b.emit("div", lesser, greater))
    size = b.emit("add", greater, b.emit("mul", lesser, ratio))
    one = b.number(1.0, right.dtype)
    over, under = b.emit("where", upright, one, ratio), b.emit("where", upright, ratio, one)
    above = product(b, "mul", left, Complex(b, (over, b.emit("neg", under))))
    return Complex(b, (b.emit("div", above.real, size), b.emit("div", above.imag, size)))


@complex_aten("reciprocal")
def reciprocal(b: ImportBuilder, x: Complex) -> Complex:
    return div(b, 1.0, x)


@complex_aten("_conj", "_conj_physical", "conj_physical", "resolve_conj")
def conj(b: ImportBuilder, x: Operand) -> Complex | SSAValue:
    if isinstance(x, SSAValue):
        return x
    x = lifted(b, x, b.result.dtype)  # the gradient of a product with a number has that of the number
    if "resolve" in str(b.node.target):
        return x
    return Complex(b, (x.real, b.emit("neg", x.imag)))


@complex_aten("abs")
def magnitude(b: ImportBuilder, x: Complex) -> SSAValue:
    return b.emit("hypot", x.real, x.imag)


@complex_aten("angle")
def angle(b: ImportBuilder, x: Complex) -> SSAValue:
    return b.emit("atan2", x.imag, x.real)


@complex_aten("sgn")
def sgn(b: ImportBuilder, x: Complex) -> Complex:
    size = b.emit("hypot", x.real, x.imag)
    zero = b.number(0.0, x.dtype)
    nothing = b.emit("eq", size, zero)
    real, imag = (b.emit("where", nothing, zero, b.emit("div", part, size)) for part in (x.real, x.imag))
    return Complex(b, (real, imag))


@complex_aten("exp")
def exp(b: ImportBuilder, x: Complex) -> Complex:
    """As C has it: a turn of exactly 0 is kept, and where the size is 0 or infinite one without end counts for nothing.

    So exp(inf + 0i) is inf + 0i, exp(-inf + nan i) is 0 and exp(inf + inf i) is inf + nan i.
    """
    size = b.emit("exp", x.real)
    value = _polar(b, size, x.imag)
    zero = b.number(0.0, x.dtype)
    endless = b.emit("isinf", x.real)
    unturned = b.emit("logical_and", endless, b.emit("logical_not", b.emit("isfinite", x.imag)))
    real = b.emit("where", unturned, b.emit("maximum", x.real, zero), value.real)
    vanished = b.emit("logical_and", unturned, b.emit("lt", x.real, zero))
    imag = b.emit("where", vanished, zero, value.imag)
    # Not of finite sizes, whose slope along the turn is no zero.
    straight = b.emit("logical_and", b.emit("logical_not", b.emit("isfinite", size)), b.emit("eq", x.imag, zero))
    return Complex(b, (real, b.emit("where", straight, x.imag, imag)))


@complex_aten("polar")
def polar(b: ImportBuilder, size: SSAValue, turn: SSAValue) -> Complex:
    return _polar(b, size, turn)


def _polar(b: ImportBuilder, size: SSAValue, turn: SSAValue) -> Complex:
    return Complex(b, (b.emit("mul", size, b.emit("cos", turn)), b.emit("mul", size, b.emit("sin", turn))))


@complex_aten("complex")
def from_parts(b: ImportBuilder, real: SSAValue, imag: SSAValue) -> Complex:
    if b.dtype(real) != b.dtype(imag):
        raise UnsupportedError("parts of two types, which torch refuses")
    shape = b.result.shape
    return Complex(b, (b.expand(real, shape), b.expand(imag, shape)))


@complex_aten("view_as_real", "view_as_real_copy")
def view_as_real(b: ImportBuilder, x: Complex) -> SSAValue:
    return x.interleaved


@complex_aten("view_as_complex", "view_as_complex_copy")
def view_as_complex(b: ImportBuilder, x: SSAValue) -> Complex:
    return Complex(b, joined=x)


@complex_aten("_to_copy", "prims.convert_element_type")
def to_copy(b: ImportBuilder, x: Complex | SSAValue, *_dtype: Any, **options: Any) -> Complex | SSAValue:
    dtype = b.result.dtype
    if not b.meta.is_complex():
        return b.to(x.real if isinstance(x, Complex) else x, dtype)
    if isinstance(x, Complex):
        return x.to(dtype)
    return Complex(b, (b.to(x, dtype), b.zeros(b.result)))


@complex_aten("copy")
def copy(b: ImportBuilder, x: Any, source: Complex | SSAValue, *_options: Any, **__: Any) -> Complex | SSAValue:
    return _spread(b, to_copy(b, source))


def _spread(b: ImportBuilder, value: Complex | SSAValue) -> Complex | SSAValue:
    shape = b.result.shape
    if isinstance(value, SSAValue):
        return b.expand(value, shape)
    return Complex(b, (b.expand(value.real, shape), b.expand(value.imag, shape)))


@complex_aten("full", "full_like", "new_full", "fill.Scalar", "scalar_tensor", "zeros", "zeros_like", "ones_like")
@complex_aten("empty.memory_format", "empty_like", "new_zeros", "new_empty", "empty_permuted", "new_empty_strided")
def full(b: ImportBuilder, *args: Any, **options: Any) -> Any:
    name = b.node.target.__name__.partition(".")[0]
    # What is filled with is the last that is not an option; of the options, several are numbers too.
    place = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}.get(name)
    given = args[place] if place is not None and place < len(args) else options.get("fill_value", name == "ones_like")
    number = complex(given)
    result = b.result
    if not b.meta.is_complex():
        return b.emit("full", value=number.real, shape=result.shape, dtype=result.dtype)
    parts = (b.emit("full", value=part, shape=result.shape, dtype=result.dtype) for part in (number.real, number.imag))
    return _joined(b, *parts)


@complex_aten("where.self")
def where(b: ImportBuilder, condition: SSAValue, yes: Operand, no: Operand) -> Complex:
    dtype = b.result.dtype
    a, z = lifted(b, yes, dtype), lifted(b, no, dtype)
    return Complex(b, (b.emit("where", condition, a.real, z.real), b.emit("where", condition, a.imag, z.imag)))


@complex_aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: ImportBuilder, x: Operand, mask: SSAValue, value: Operand) -> Complex:
    return where(b, mask, value, x)


@complex_aten("eq.Tensor", "eq.Scalar")
def eq(b: ImportBuilder, x: Operand, y: Operand) -> SSAValue:
    return _compared(b, "eq", "logical_and", x, y)


@complex_aten("ne.Tensor", "ne.Scalar")
def ne(b: ImportBuilder, x: Operand, y: Operand) -> SSAValue:
    return _compared(b, "ne", "logical_or", x, y)


def _compared(b: ImportBuilder, name: str, joined: str, x: Operand, y: Operand) -> SSAValue:
    one = x if isinstance(x, Complex) else y
    if not isinstance(one, Complex):
        raise UnsupportedError("a comparison without complex operands")
    left, right = lifted(b, x, one.dtype), lifted(b, y, one.dtype)
    return b.emit(joined, b.emit(name, left.real, right.real), b.emit(name, left.imag, right.imag))
