"""Random numbers from counters: Philox 4x32 (or 4x64), bit for bit as Triton computes it."""

from __future__ import annotations

from typing import Any

from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import maximum, where
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.constants import constexpr, unwrap
from weft.frontends.triton.language.elementary import cos, log, sin, sqrt, umulhi
from weft.frontends.triton.language.promotion import constant, to_tensor
from weft.frontends.triton.language.values import tensor

N_ROUNDS_DEFAULT = constexpr(10)

# Of Philox, by width: how much the two keys grow in each round, and the two multipliers.
_CONSTANTS = {
    32: (0x9E3779B9, 0xBB67AE85, 0xD2511F53, 0xCD9E8D57),
    64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0xD2E7470EE14C6C93, 0xCA5A826395121157),
}

_Four = tuple[tensor, tensor, tensor, tensor]


def philox_impl(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> _Four:
    """Rounds of Philox on four words of counter and two of key."""
    element = c0.dtype
    if element not in (types.uint32, types.uint64):
        raise KernelTypeError(f"dtype not supported in philox_impl: {element}", hint="cast the counters to tl.uint32")
    grow0, grow1, factor_a, factor_b = _CONSTANTS[element.primitive_bitwidth]
    a, b = constant(factor_a, element), constant(factor_b, element)
    for _ in range(unwrap(n_rounds)):
        old0, old2 = c0, c2
        c0 = umulhi(b, old2) ^ c1 ^ k0
        c2 = umulhi(a, old0) ^ c3 ^ k1
        c1, c3 = b * old2, a * old0
        k0, k1 = k0 + constant(grow0, element), k1 + constant(grow1, element)
    return c0, c1, c2, c3


def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> _Four:
    """Four random words for four words of counter."""
    key = to_tensor(seed)
    if not key.dtype.is_int():
        raise KernelTypeError(f"a seed is an integer, got {key}")
    key = converted(key, types.uint64, None)
    counters = [to_tensor(c) for c in (c0, c1, c2, c3)]
    width = counters[0].dtype.primitive_bitwidth
    if width == 32:
        high = converted(key >> 32, types.uint32, None)
        low = converted(key & 0xFFFFFFFF, types.uint32, None)
    elif width == 64:
        high, low = constant(0, types.uint64), key
    else:
        raise KernelTypeError(f"bitwidth not supported in philox: {counters[0].dtype}")
    element = types.get_int_dtype(width, False)
    words = [same_bits(counter, element) for counter in counters]
    return philox_impl(words[0], words[1], words[2], words[3], low, high, n_rounds)


def randint4x(seed: Any, offset: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> _Four:
    """Four tiles of random 32-bit words for a tile of offsets."""
    place = to_tensor(offset)
    low = converted(place, types.uint32, None)
    zero = low * 0
    high = converted(place >> 32, types.uint32, None) if place.dtype.primitive_bitwidth > 32 else zero
    return philox(seed, low, high, zero, zero, n_rounds)


def randint(seed: Any, offset: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> tensor:
    """A random 32-bit word for each offset."""
    return randint4x(seed, offset, n_rounds)[0]


def uint_to_uniform_float(x: Any) -> tensor:
    """A random word as a number from [0, 1)."""
    word = to_tensor(x)
    if not word.dtype.is_int() or word.dtype.primitive_bitwidth not in (32, 64):
        raise KernelTypeError(f"uint_to_uniform_float takes 32 or 64 bits, got {word}")
    wide = word.dtype.primitive_bitwidth == 64
    word = same_bits(word, types.int64 if wide else types.int32)
    # The largest scale with which the largest word stays below 1 in fp32.
    scale = 1.0842020432385337e-19 if wide else 4.6566127342e-10
    return where(word < 0, -word - 1, word) * scale


def rand(seed: Any, offset: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> tensor:
    """A number from [0, 1) for each offset."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


def rand4x(seed: Any, offsets: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> _Four:
    """Four numbers from [0, 1) for each offset."""
    a, b, c, d = map(uint_to_uniform_float, randint4x(seed, offsets, n_rounds))
    return a, b, c, d


def pair_uniform_to_normal(u1: Any, u2: Any) -> tuple[tensor, tensor]:
    """Two independent numbers from [0, 1) as two from the normal distribution (Box and Muller)."""
    radius = sqrt(-2.0 * log(maximum(1.0e-7, u1)))
    angle = 6.283185307179586 * u2
    return radius * cos(angle), radius * sin(angle)


def randn(seed: Any, offset: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> tensor:
    """A number from the normal distribution for each offset."""
    first, second, _, _ = randint4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(uint_to_uniform_float(first), uint_to_uniform_float(second))[0]


def randn4x(seed: Any, offset: Any, n_rounds: Any = N_ROUNDS_DEFAULT) -> _Four:
    """Four numbers from the normal distribution for each offset."""
    u1, u2, u3, u4 = rand4x(seed, offset, n_rounds)
    return (*pair_uniform_to_normal(u1, u2), *pair_uniform_to_normal(u3, u4))
