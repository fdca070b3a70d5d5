"""Random numbers from counters: an element's number is a function of a seed and of where it stands.

Philox 4x32 with ten rounds makes four words of one counter, which serve four neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from weft.errors import ShapeError
from weft.ir.expr import Size, product
from weft.ir.types import Tensor, f32, i64, u32, u64
from weft.ops.base import Movement, op
from weft.ops.body import Body, Operand, Value
from weft.ops.samples import Input, Sample

_ROUNDS = 10
_GROW = (0x9E3779B9, 0xBB67AE85)
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WORDS = 2
"""A counter makes 1 << 2 words."""


@op(
    "uniform",
    samples=[
        Sample((Input((1,), -(2**40), 2**40, i64),), {"shape": shape}) for shape in [(7,), (2, 5), (3, 0), (4, 3, 2)]
    ],
)
class Uniform(Movement):
    """Numbers in [0, 1) of 24 random bits, from a seed of 64 bits."""

    NO_RULE: ClassVar[Mapping[str, str]] = {"batch": "one seed serves a whole batch: `vmap` draws the numbers itself"}

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        if len(tensors) != 1 or tensors[0] != Tensor(i64, (1,)):
            raise ShapeError(f"uniform takes a seed of type {Tensor(i64, (1,))}, got {', '.join(map(str, tensors))}")
        return Tensor(f32, params["shape"])

    @staticmethod
    def reference(seed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        places = np.arange(int(np.prod(shape)), dtype=np.uint64)
        low = np.uint64(0xFFFFFFFF)
        counters = [(places >> np.uint64(_WORDS)) & low, places >> np.uint64(32 + _WORDS), places * 0, places * 0]
        key = int(seed[0]) % 2**64
        keys = [key % 2**32, key >> 32]
        for _ in range(_ROUNDS):
            first, second = (counters[2 * n] * np.uint64(_FACTORS[n]) for n in (0, 1))
            half = np.uint64(32)
            counters = [
                (second >> half) ^ counters[1] ^ np.uint64(keys[0]),
                second & low,
                (first >> half) ^ counters[3] ^ np.uint64(keys[1]),
                first & low,
            ]
            keys = [(key + grow) % 2**32 for key, grow in zip(keys, _GROW, strict=True)]
        words = np.stack(counters)[(places % 4).astype(np.int64), np.arange(places.size)]
        return ((words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], seed: Operand, shape: tuple[Size, ...]) -> Value:
        place: Size = 0
        for number, position in enumerate(index):
            place = place + position * product(shape[number + 1 :])
        where = body.position(place, i64)
        words = _philox(body, body.math("shr", where, body.constant(_WORDS, i64)), body.at(seed, [0]))
        which = body.cast(body.math("and", where, body.constant((1 << _WORDS) - 1, i64)), u32)
        word = words[-1]
        for number in range(len(words) - 2, -1, -1):
            word = body.where(body.math("eq", which, body.constant(number, u32)), words[number], word)
        bits = body.cast(body.math("shr", word, body.constant(8, u32)), f32)
        return body.math("mul", bits, body.constant(2.0**-24, f32))


def _philox(body: Body, counter: Value, seed: Value) -> list[Value]:
    """Four random words of 32 bits."""

    def halves(value: Value) -> tuple[Value, Value]:
        """The lower and the upper word."""
        whole = body.cast(value, u64)
        return body.cast(whole, u32), body.cast(body.math("shr", whole, body.constant(32, u64)), u32)

    zero = body.constant(0, u32)
    words: list[Value] = [*halves(counter), zero, zero]
    keys = list(halves(seed))
    for _ in range(_ROUNDS):
        (low, high), (other_low, other_high) = (
            halves(body.math("mul", body.cast(words[2 * n], u64), body.constant(_FACTORS[n], u64))) for n in (0, 1)
        )
        words = [
            body.math("xor", body.math("xor", other_high, words[1]), keys[0]),
            other_low,
            body.math("xor", body.math("xor", high, words[3]), keys[1]),
            low,
        ]
        keys = [body.math("add", key, body.constant(grow, u32)) for key, grow in zip(keys, _GROW, strict=True)]
    return words
