"""The operators: arithmetic, comparison, bits and choice, for tensors and Python's numbers in any mixture."""

from __future__ import annotations

import enum
from typing import Any, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.constants import constexpr, unwrap
from weft.frontends.triton.language.promotion import (
    broadcast_all,
    broadcast_pair,
    incompatible,
    like,
    pair,
    promote_integers,
    spread,
    to_tensor,
)
from weft.frontends.triton.language.types import dtype, pointer_type
from weft.frontends.triton.language.values import operator, tensor
from weft.tile.dialect import EXACT


class PropagateNan(enum.Enum):
    """Whether a NaN among the operands of a minimum or maximum is the result."""

    NONE = 0
    ALL = 0xFFFF


def mapped(function: str, *values: tensor, result: dtype | None = None) -> tensor:
    """A function of `weft.tile.functions` of tensors of one type and shape; 8-bit floats are computed in fp32."""
    element = values[-1].dtype
    if element.is_fp8() and function not in ("select", "eq", "ne", "lt", "le", "gt", "ge"):
        wide = mapped(function, *(converted(value, types.float32, None) for value in values), result=result)
        return wide if result is not None else converted(wide, element, None)
    if element.is_foreign and function != "select":
        return mapped(function, *(converted(value, types.float32, None) for value in values), result=result)
    handle = builder.current.get().map(function, [value.handle for value in values], element.stored)
    return like(handle, values[-1], result)


def exactly(value: tensor) -> tensor:
    """The result of a function that is rounded to nearest, also where others need not be."""
    builder.current.get().hint(value.handle, EXACT, ())
    return value


# On one bit, a sum and a difference are an exclusive or, and a product is an and.
_ON_BITS = {"add": "xor", "sub": "xor", "mul": "and"}


def _number(function: str, a: tensor, b: tensor) -> tensor:
    return mapped(_ON_BITS[function] if a.dtype.is_bool() else function, a, b)


def _moved(pointer: tensor, offset: tensor) -> tensor:
    """Pointers moved on by a number of elements."""
    if not offset.dtype.is_int():
        raise incompatible(pointer.dtype, offset.dtype)
    if offset.dtype.is_int_unsigned() and offset.dtype.int_bitwidth < 64:
        offset = converted(offset, types.int64, None)
    element = cast(pointer_type, pointer.dtype).element_ty.stored
    handle = builder.current.get().advance(pointer.handle, offset.handle, offset.dtype.stored, element)
    return like(handle, pointer)


@operator("add")
def add(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    """x + y; integers move pointers."""
    a, b = pair(x, y, pointer_a=True, pointer_b=True)
    if a.dtype.is_ptr() and b.dtype.is_ptr():
        raise KernelTypeError(f"cannot add pointers together: {a} and {b}", hint="add an integer offset to one pointer")
    if b.dtype.is_ptr():
        a, b = b, a
    if a.dtype.is_ptr():
        return _moved(a, b)
    return _number("add", a, b)


@operator("sub")
def sub(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    """x - y; integers move pointers back."""
    a, b = pair(x, y, pointer_a=True)
    return _moved(a, negated(b)) if a.dtype.is_ptr() else _number("sub", a, b)


@operator("mul")
def mul(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    """x * y."""
    return _number("mul", *pair(x, y))


@operator("truediv")
def truediv(x: Any, y: Any) -> tensor:
    """x / y, of integers too: these are divided as fp32."""
    a, b = pair(x, y, dividing=True)
    if a.dtype.is_int():
        a, b = converted(a, types.float32, None), converted(b, types.float32, None)
    return mapped("div", a, b)


@operator("floordiv")
def floordiv(x: Any, y: Any) -> tensor:
    """The quotient of integers, rounded towards zero as in C."""
    a, b = pair(x, y, dividing=True)
    if not a.dtype.is_int():
        raise KernelTypeError(f"unexpected type {a.dtype} for //", hint="use tl.floor(x / y) for floats")
    common = promote_integers(a.dtype, b.dtype)
    return mapped("truncdiv", converted(a, common, None), converted(b, common, None))


@operator("mod")
def mod(x: Any, y: Any) -> tensor:
    """The remainder, with the sign of x, as in C."""
    a, b = pair(x, y, dividing=True)
    return mapped("fmod", a, b)


@operator("neg")
def negated(x: tensor) -> tensor:
    if x.dtype.is_ptr():
        raise KernelValueError(f"wrong type argument to unary minus ({x.dtype!r})")
    return x if x.dtype.is_bool() else mapped("neg", x)


@operator("invert")
def invert(x: tensor) -> tensor:
    if x.dtype.is_ptr() or x.dtype.is_floating():
        raise KernelValueError(f"wrong type argument to unary invert ({x.dtype!r})", hint="~ flips bits of integers")
    return mapped("not", x)


def _as_bool(x: Any) -> tensor:
    return converted(to_tensor(x), types.int1, None)


@operator("not")
def not_(x: Any) -> tensor:
    return mapped("not", _as_bool(x))


@operator("logical_and")
def logical_and(x: Any, y: Any) -> tensor:
    return mapped("and", *broadcast_pair(_as_bool(x), _as_bool(y)))


@operator("logical_or")
def logical_or(x: Any, y: Any) -> tensor:
    return mapped("or", *broadcast_pair(_as_bool(x), _as_bool(y)))


def _integers(x: Any, y: Any) -> tuple[tensor, tensor]:
    a, b = pair(x, y)
    if not a.dtype.is_int() or not b.dtype.is_int():
        raise KernelTypeError(
            f"invalid operands of type {a.dtype!r} and {b.dtype!r}", hint="bits are combined of integers only"
        )
    return a, b


def _bitwise(function: str, x: Any, y: Any) -> tensor:
    return mapped(function, *_integers(x, y))


@operator("and")
def and_(x: Any, y: Any) -> tensor:
    return _bitwise("and", x, y)


@operator("or")
def or_(x: Any, y: Any) -> tensor:
    return _bitwise("or", x, y)


@operator("xor")
def xor(x: Any, y: Any) -> tensor:
    return _bitwise("xor", x, y)


@operator("shl")
def shl(x: Any, y: Any) -> tensor:
    return _bitwise("shl", x, y)


@operator("shr")
def shr(x: Any, y: Any) -> tensor:
    """Signed numbers keep their sign: it is the first tensor's own type that counts, not the common one."""
    owner = x if isinstance(unwrap(x), tensor) else y
    a, b = _integers(x, y)
    if not owner.dtype.is_int_signed() or a.dtype.is_int_signed():
        return mapped("shr", a, b)
    signed = types.get_int_dtype(a.dtype.int_bitwidth, True)
    return same_bits(mapped("shr", same_bits(a, signed), same_bits(b, signed)), a.dtype)


def _compare(function: str, x: Any, y: Any) -> tensor:
    a, b = pair(to_tensor(x), to_tensor(y), pointer_a=True, pointer_b=True)
    if a.dtype.is_ptr() or b.dtype.is_ptr():
        a, b = converted(a, types.int64, None), converted(b, types.int64, None)
    return mapped(function, a, b, result=types.int1)


@operator("lt")
def lt(x: Any, y: Any) -> tensor:
    return _compare("lt", x, y)


@operator("le")
def le(x: Any, y: Any) -> tensor:
    return _compare("le", x, y)


@operator("gt")
def gt(x: Any, y: Any) -> tensor:
    return _compare("gt", x, y)


@operator("ge")
def ge(x: Any, y: Any) -> tensor:
    return _compare("ge", x, y)


@operator("eq")
def eq(x: Any, y: Any) -> Any:
    return constexpr(False) if unwrap(y) is None else _compare("eq", x, y)


@operator("ne")
def ne(x: Any, y: Any) -> Any:
    return constexpr(True) if unwrap(y) is None else _compare("ne", x, y)


def where(condition: Any, x: Any, y: Any) -> tensor:
    """x where the condition holds, else y."""
    chosen = _as_bool(condition)
    a, b = pair(x, y, pointer_a=True, pointer_b=True)
    if chosen.sides:
        chosen, a, b = broadcast_all(chosen, a, b)
    else:
        chosen = spread(chosen, a.sides)
    if a.dtype.is_ptr() or b.dtype.is_ptr():
        if a.dtype != b.dtype:
            raise incompatible(a.dtype, b.dtype)
        element = cast(pointer_type, a.dtype).element_ty
        handles = (chosen.handle, a.handle, b.handle)
        return like(builder.current.get().select_pointer(*handles, element.stored), a)
    return mapped("select", chosen, a, b)


def widened(x: tensor) -> tensor:
    """bf16 as fp32: minima, maxima and scans are computed so."""
    return converted(x, types.float32, None) if x.dtype.is_bf16() else x


def _extreme(function: str, x: Any, y: Any, propagate_nan: Any) -> tensor:
    a, b = pair(widened(to_tensor(x)), widened(to_tensor(y)))
    mode = unwrap(propagate_nan)
    if mode not in (PropagateNan.NONE, PropagateNan.ALL):
        raise KernelValueError(f"Unexpected propagate_nan {mode}", hint="use tl.PropagateNan.NONE or .ALL")
    if a.dtype.is_bool():
        return mapped("and" if function == "min" else "or", a, b)
    return mapped(f"f{function}" if a.dtype.is_floating() and mode == PropagateNan.NONE else function, a, b)


def minimum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """The smaller of two; of a NaN and a number the number, unless NaNs propagate."""
    return _extreme("min", x, y, propagate_nan)


def maximum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """The larger of two; of a NaN and a number the number, unless NaNs propagate."""
    return _extreme("max", x, y, propagate_nan)


def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """x, but at least `min` and at most `max`."""
    low, high = pair(widened(to_tensor(min)), widened(to_tensor(max)))
    value, low = pair(widened(to_tensor(x)), low)
    value, high = pair(value, high)
    value, low, high = broadcast_all(value, low, high)
    if not value.dtype.is_floating():
        raise KernelTypeError(
            f"Unexpected dtype {value.dtype}. Only floating point clamp is supported",
            hint="use tl.minimum(tl.maximum(x, low), high)",
        )
    return minimum(maximum(value, low, propagate_nan), high, propagate_nan)


def _of_python(function: Any, elementwise: Any, args: tuple[Any, ...]) -> Any:
    values = [unwrap(arg) for arg in args]
    if len(values) == 1 and not isinstance(values[0], tensor):
        values = [unwrap(item) for item in values[0]]
    if not any(isinstance(value, tensor) for value in values):
        return constexpr(function(values))
    result = values[0]
    for value in values[1:]:
        result = elementwise(result, value)
    return result


def builtin_max(*args: Any) -> Any:
    """What Python's `max` means in a kernel."""
    return _of_python(max, maximum, args)


def builtin_min(*args: Any) -> Any:
    """What Python's `min` means in a kernel."""
    return _of_python(min, minimum, args)


def bit_pattern(x: tensor, signed: bool = False) -> tensor:
    """The bits of each element as an integer."""
    return same_bits(x, types.get_int_dtype(x.dtype.primitive_bitwidth, signed))
