"""The functions of NVIDIA's device library on integers and on the bits of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import bit_pattern, where
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.elementary import umulhi
from weft.frontends.triton.language.promotion import broadcast_all, constant, pair, to_tensor
from weft.frontends.triton.language.types import dtype
from weft.frontends.triton.language.values import tensor


def _word(x: Any) -> tensor:
    """The bits of an integer of 32 or 64, as unsigned."""
    value = to_tensor(x)
    if not value.dtype.is_int() or value.dtype.int_bitwidth not in (32, 64):
        raise KernelTypeError(f"this function of libdevice takes integers of 32 or 64 bits, got {value}")
    return bit_pattern(value)


def popc(arg0: Any) -> tensor:
    """How many bits are set, counted in pairs, fours and eights."""
    word = _word(arg0)
    width = word.dtype.int_bitwidth

    def every(byte: int) -> int:
        return int.from_bytes(bytes([byte]) * (width // 8), "little")

    word = word - ((word >> 1) & every(0x55))
    word = (word & every(0x33)) + ((word >> 2) & every(0x33))
    word = (word + (word >> 4)) & every(0x0F)
    return converted((word * every(0x01)) >> (width - 8), types.int32, None)


def clz(arg0: Any) -> tensor:
    """How many zeros come before the highest bit that is set."""
    word = _word(arg0)
    width, step = word.dtype.int_bitwidth, 1
    while step < width:
        word = word | (word >> step)
        step *= 2
    return width - popc(word)


def ffs(arg0: Any) -> tensor:
    """The place of the lowest bit that is set, counted from 1; 0 if there is none."""
    word = _word(arg0)
    lowest = word & (~word + 1)
    place = word.dtype.int_bitwidth - clz(lowest)
    return where(word == 0, constant(0, types.int32), place)


def brev(arg0: Any) -> tensor:
    """The bits in the opposite order."""
    value = to_tensor(arg0)
    word = _word(value)
    width = word.dtype.int_bitwidth
    step, mask = 1, (1 << width) - 1
    while step < width:
        part = sum(((1 << step) - 1) << at for at in range(0, width, 2 * step)) & mask
        word = ((word >> step) & part) | ((word & part) << step)
        step *= 2
    return same_bits(word, value.dtype)


def byte_perm(arg0: Any, arg1: Any, arg2: Any) -> tensor:
    """Four of the eight bytes of two words, chosen by the digits of a third."""
    low, high, chosen = broadcast_all(_word(arg0), _word(arg1), _word(arg2))
    both = converted(low, types.uint64, None) | (converted(high, types.uint64, None) << 32)
    result = constant(0, types.uint64, both.sides)
    for place in range(4):
        which = converted((chosen >> (4 * place)) & 7, types.uint64, None)
        result = result | (((both >> (which * 8)) & 0xFF) << (8 * place))
    return converted(result, types.int32, None)


def mulhi(arg0: Any, arg1: Any) -> tensor:
    """The upper half of a product, signed if the operands are."""
    a, b = pair(to_tensor(arg0), to_tensor(arg1))
    high = umulhi(a, b)
    if a.dtype.is_int_unsigned():
        return high
    # Taken as unsigned, a negative number is larger by 2**width.
    high = high - where(a < 0, b, constant(0, b.dtype))
    return high - where(b < 0, a, constant(0, a.dtype))


def mul24(arg0: Any, arg1: Any) -> tensor:
    """The product of the lower 24 bits."""
    a, b = pair(to_tensor(arg0), to_tensor(arg1))
    return ((a << 8) >> 8) * ((b << 8) >> 8)


def sad(arg0: Any, arg1: Any, arg2: Any) -> tensor:
    """|arg0 - arg1| + arg2."""
    a, b = pair(to_tensor(arg0), to_tensor(arg1))
    return where(a > b, a - b, b - a) + arg2


def hadd(arg0: Any, arg1: Any) -> tensor:
    """The mean of two integers, rounded down, without overflow."""
    a, b = pair(to_tensor(arg0), to_tensor(arg1))
    return (a & b) + ((a ^ b) >> 1)


def rhadd(arg0: Any, arg1: Any) -> tensor:
    """The mean of two integers, rounded up, without overflow."""
    a, b = pair(to_tensor(arg0), to_tensor(arg1))
    return (a | b) - ((a ^ b) >> 1)


def _as(element: dtype) -> Callable[[Any], tensor]:
    def apply(arg0: Any) -> tensor:
        return same_bits(to_tensor(arg0), element)

    return apply


int_as_float, uint_as_float, longlong_as_double = _as(types.float32), _as(types.float32), _as(types.float64)
float_as_int, float_as_uint, double_as_longlong = _as(types.int32), _as(types.uint32), _as(types.int64)


def hiloint2double(arg0: Any, arg1: Any) -> tensor:
    """A double from its upper and lower word."""
    high, low = broadcast_all(_word(arg0), _word(arg1))
    word = (converted(high, types.uint64, None) << 32) | converted(low, types.uint64, None)
    return same_bits(word, types.float64)


def double2loint(arg0: Any) -> tensor:
    return converted(same_bits(to_tensor(arg0), types.uint64), types.int32, None)


def double2hiint(arg0: Any) -> tensor:
    return converted(same_bits(to_tensor(arg0), types.uint64) >> 32, types.int32, None)
