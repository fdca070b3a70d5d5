"""Attention whose weights are dropped at random, by a rule that says of every place whether it is kept.

Nothing random is kept in memory: whoever computes a weight knows from a seed and its place whether it counts, forward
and backward. A row of a head has a word of its own, mixed of the seed and both numbers; a step for each key is added
to it, and mixed once more, which is half as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, product
from weft.ir.types import DType, Tensor, bf16, f16, f32, f64, i64, u32, u64
from weft.ops.base import Movement, Precision, Structured, op
from weft.ops.body import Body, Operand, Value
from weft.ops.matmul.attention import AnyAttention
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, einsum

SEED = Tensor(i64, (1,))
_HEAD, _ROW, _KEY = 0x9E3779B9, 0x85EBCA6B, 0x9E3779B1
_MIXING = ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1))
"""Shifts and factors of a mixing function of 32 bits (lowbias32): after it, each bit depends on all."""
_HALF, _BITS = 8, 16
"""Keys that lie so far apart share a word, one having its lower and one its upper bits."""


def threshold(dropout: float) -> int:
    """The number that the word of a weight which is kept is below."""
    return max(0, min((1 << _BITS) - 1, round((1 - dropout) * (1 << _BITS)))) << _BITS


def mixed(body: Body, word: Value) -> Value:
    for shift, factor in _MIXING:
        word = body.math("xor", word, body.math("shr", word, body.constant(shift, u32)))
        word = word if factor == 1 else body.math("mul", word, body.constant(factor, u32))
    return word


def word_of_head(body: Body, seed: Value, head: Value) -> Value:
    """The word of a head, of its number and a seed of 64 bits."""
    whole = body.cast(seed, u64)
    low, high = body.cast(whole, u32), body.cast(body.math("shr", whole, body.constant(32, u64)), u32)
    first = mixed(body, body.math("add", low, body.math("mul", head, body.constant(_HEAD, u32))))
    return mixed(body, body.math("xor", first, high))


def word_of_row(body: Body, of_head: Value, row: Value) -> Value:
    return mixed(body, body.math("add", of_head, body.math("mul", row, body.constant(_ROW, u32))))


def is_kept(body: Body, of_row: Value, key: Value, dropout: float) -> Value:
    """Whether the weight of a key, by its number, counts for a row that has this word."""
    of_pair = body.math("and", key, body.constant(0xFFFFFFFF - _HALF, u32))
    word = mixed(body, body.math("add", of_row, body.math("mul", of_pair, body.constant(_KEY, u32))))
    half = body.math("mul", body.math("and", key, body.constant(_HALF, u32)), body.constant(_BITS // _HALF, u32))
    bits = body.math("shl", word, body.math("sub", body.constant(_BITS, u32), half))
    return body.math("lt", bits, body.constant(threshold(dropout), u32))


def _mixed(word: np.ndarray) -> np.ndarray:
    for shift, factor in _MIXING:
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return word


def words_of_rows(seed: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The words of the rows of heads [..., rows]."""
    *lead, rows = shape
    whole = np.asarray(seed, np.int64).astype(np.uint64)
    low, high = whole.astype(np.uint32), (whole >> np.uint64(32)).astype(np.uint32)
    heads = np.arange(int(np.prod(lead)), dtype=np.uint32)
    of_heads = _mixed(_mixed(low + heads * np.uint32(_HEAD)) ^ high)
    numbers = np.arange(rows, dtype=np.uint32) * np.uint32(_ROW)
    return _mixed(of_heads[:, None] + numbers).reshape(tuple(shape))


def kept_weights(seed: np.ndarray, shape: Sequence[int], dropout: float) -> np.ndarray:
    """Which weights [..., rows, keys] count."""
    *many, count = shape
    keys = np.arange(count, dtype=np.uint32)
    words = _mixed(words_of_rows(seed, many)[..., None] + (keys & np.uint32(0xFFFFFFFF - _HALF)) * np.uint32(_KEY))
    bits = words << (np.uint32(_BITS) - (keys & np.uint32(_HALF)) * np.uint32(_BITS // _HALF))
    return bits < np.uint32(threshold(dropout))


_ROWS = [(7,), (2, 5), (2, 3, 4), (3, 0)]
_SEED = Input((1,), -(2**40), 2**40, i64)


@op("dropout_rows", samples=[Sample((_SEED,), {"shape": shape}) for shape in _ROWS])
class DropoutRows(Movement):
    """A word for each row of each head [..., rows], of which a kernel of attention makes those of its weights."""

    NO_RULE: ClassVar[Mapping[str, str]] = {"batch": "one seed serves a whole batch"}

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        _check_seed("dropout_rows", tensors)
        return Tensor(u32, params["shape"])

    @staticmethod
    def reference(seed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return words_of_rows(seed, shape)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], seed: Operand, shape: tuple[Size, ...]) -> Value:
        head: Size = 0
        for number, position in enumerate(index[:-1]):
            head = head + position * product(shape[number + 1 : -1])
        numbers = (body.cast(body.position(place, i64), u32) for place in (head, index[-1]))
        of_head, row = numbers
        return word_of_row(body, word_of_head(body, body.at(seed, [0]), of_head), row)


def _check_seed(name: str, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != 1 or tensors[0] != SEED:
        raise ShapeError(f"{name} takes a seed of type {SEED}, got {', '.join(map(str, tensors))}")


def _samples() -> list[Sample]:
    def inputs(lead: tuple[int, ...], rows: int, keys: int, width: int, out: int) -> tuple[Input, ...]:
        shapes = (*lead, rows, width), (*lead, keys, width), (*lead, keys, out)
        return *(Input(shape) for shape in shapes), _SEED

    kinds: tuple[DType, ...] = (f32, f64, bf16, f16)
    return [
        Sample(inputs((2, 3), 5, 7, 4, 4), {"causal": False, "scale": 0.5, "dropout": 0.25}, kinds),
        Sample(inputs((2,), 17, 33, 8, 6), {"causal": True, "scale": 0.3, "dropout": 0.5}, kinds),
        Sample(inputs((), 1, 9, 4, 4), {"causal": False, "scale": 1.0, "dropout": 0.1}, kinds),
    ]


@op("attention_with_dropout", samples=_samples())
class AttentionWithDropout(Structured):
    """`attention_with_lse` over q [..., L, E], k [..., S, E] and v [..., S, V], whose weights count with probability
    1 - `dropout`, and are divided by it.

    A seed, [1] of i64, decides which: the fourth operand. The logarithms are those of all weights.
    """

    AUTOCAST: ClassVar[Precision] = "narrow"
    NO_RULE: ClassVar[Mapping[str, str]] = {
        "vjp": "torch traces it backwards: attention_gradients takes the seed",
        "batch": "one seed serves a whole batch",
    }

    @property
    def masks(self) -> Sequence[SSAValue]:
        return ()

    @property
    def seen(self) -> Sequence[SSAValue]:
        return ()

    @property
    def sinks(self) -> Sequence[SSAValue]:
        return ()

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        _check_seed("attention_with_dropout", tensors[3:])
        result = AnyAttention.weighted(*tensors[:3])
        return result, Tensor(f64 if result.dtype == f64 else f32, result.shape[:-1])

    @staticmethod
    def sharding(*tensors: Tensor, **params: Any) -> ShardingRule:
        """Nothing splits: a weight's place among all decides whether it counts."""
        sides = ["." * tensor.rank for tensor in tensors]
        return einsum(f"{','.join(sides)}->{sides[0]},{sides[0][1:]}", tensors)

    @staticmethod
    def reference(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, seed: np.ndarray, *, causal: bool, scale: float, dropout: float
    ) -> tuple[np.ndarray, np.ndarray]:
        dtype, wide = q.dtype, np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
        q, k, v = (x.astype(wide) for x in (q, k, v))
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * wide.type(scale)
        if causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(most == -np.inf, 0, most))
        total = np.sum(powers, axis=-1, keepdims=True)
        kept = np.where(kept_weights(seed, scores.shape, dropout), powers, 0)
        with np.errstate(divide="ignore"):
            lse = (np.log(total) + np.where(most == -np.inf, 0, most))[..., 0]
        share = wide.type(1 - dropout) * np.where(total == 0, 1, total)
        return (np.matmul(kept, v) / share).astype(dtype), lse.astype(wide)
