"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size
from weft.ir.types import Tensor, bf16, boolean, f16, f32, f64, i32, i64
from weft.ops.base import Precision, Structured, broadcast_shapes, op, same_dtype
from weft.ops.composites import narrowed, widened
from weft.ops.graph import GraphBuilder
from weft.ops.matmul.attention_rows import BY_BLOCKS_FROM, ScoreRule, gradients_by_blocks, row_gradients, rows_at_once
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, align_batched, batch_size, with_batch
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, einsum

_DTYPES = (f32, f64, bf16, f16)


def _samples() -> list[Sample]:
    def inputs(lead: tuple[int, ...], rows: int, columns: int, width: int, out: int) -> tuple[Input, ...]:
        return Input((*lead, rows, width)), Input((*lead, columns, width)), Input((*lead, columns, out))

    small, wide = inputs((2, 3), 5, 7, 4, 4), inputs((2,), 17, 33, 8, 6)
    plain = {"causal": False, "scale": 0.5}
    return [
        Sample(small, {"causal": False, "scale": 0.5}, _DTYPES),
        Sample(small, {"causal": True, "scale": 0.5}, _DTYPES),
        Sample(wide, {"causal": True, "scale": 0.3}, _DTYPES),
        Sample(inputs((), 1, 9, 4, 4), {"causal": False, "scale": 1.0}, _DTYPES),
        Sample((*small, Input((5, 7))), {"causal": False, "scale": 0.5}, _DTYPES),
        Sample((*small, Input((2, 1, 1, 7), dtype=boolean)), {"causal": False, "scale": 0.5}, _DTYPES),
        Sample((*small, Input((3, 5, 7), dtype=boolean)), {"causal": True, "scale": 0.5}, _DTYPES),
        Sample((*small, Input((5, 7))), {"causal": False, "scale": 0.5, "softcap": 1.5}, _DTYPES),
        Sample(wide, {"causal": True, "scale": 0.3, "softcap": 2.0}, _DTYPES),
        Sample((*small, Input((3, 1, 1))), {"causal": True, "scale": 0.5, "sinks": True}, _DTYPES),
        Sample((*small, Input((5, 7), dtype=boolean), Input((3, 5, 1))), {**plain, "sinks": True}, _DTYPES),
        Sample(inputs((2, 0), 3, 4, 2, 2), {"causal": False, "scale": 0.5}, _DTYPES),
        Sample((*inputs((2,), 5, 1, 4, 4), Input((5, 1))), {**plain, "sinks": True}, _DTYPES),
        Sample((*inputs((), 1, 1, 1, 1), Input((1, 1), dtype=boolean)), plain, _DTYPES),
    ]


WIDEST_HEAD = 256
"""The width of the queries or values that one tile of a GPU's tensor cores holds."""
_WIDEST_OF_FEW, _FEW_ROWS = 576, 256
SEEN_ROWS, SEEN = 128, 5
"""The rows of a tile that it is told of which keys they see, and how many numbers tell it."""


def widest_head(rows: Size) -> int:
    """The width of heads for which there are kernels: if rows are few, in narrow tiles and columns of values apart."""
    return _WIDEST_OF_FEW if isinstance(rows, int) and rows <= _FEW_ROWS else WIDEST_HEAD


class AnyAttention(Structured):
    """Attention, with or without what its gradients are computed from beside its result."""

    AUTOCAST: ClassVar[Precision] = "narrow"

    @property
    def masks(self) -> Sequence[SSAValue]:
        return self._given[:1]

    @property
    def seen(self) -> Sequence[SSAValue]:
        """Which keys the rows of tiles see, if that is told."""
        return self._given[1:]

    @property
    def sinks(self) -> Sequence[SSAValue]:
        """A score of each row that counts beside those of its keys, if there are such."""
        return self.operands[-1:] if self.params.get("sinks") else ()

    @property
    def _given(self) -> Sequence[SSAValue]:
        return self.operands[3 : len(self.operands) - len(self.sinks)]

    @classmethod
    def weighted(cls, *tensors: Tensor, sinks: bool = False) -> Tensor:
        """The type of the sums of values."""
        tensors, sink = (tensors[:-1], tensors[-1]) if sinks else (tensors, None)
        q, k, v, *masks = tensors[:4]
        dtype = same_dtype("attention", (q, k, v))
        lead, rows = q.shape[:-2], q.shape[-2:-1]
        if not dtype.is_float:
            raise DTypeError(f"attention takes floats, got {q}")
        if (
            not q.rank == k.rank == v.rank >= 2
            or not lead == k.shape[:-2] == v.shape[:-2]
            or q.shape[-1] != k.shape[-1]
            or k.shape[-2] != v.shape[-2]
            or len(tensors) not in (3, 4, 3 + SEEN, 4 + SEEN)
            or any(seen.dtype not in (i32, i64) or seen.rank != 2 or seen.shape[1] != 1 for seen in tensors[4:])
        ):
            raise ShapeError(
                f"attention: {', '.join(map(str, tensors))} do not fit",
                hint="it takes [..., L, E], [..., S, E], [..., S, V] and perhaps a mask; expand grouped heads",
            )
        if sink is not None and broadcast_shapes(sink.shape, (*lead, *rows, 1)) != (*lead, *rows, 1):
            raise ShapeError(f"attention: the sinks {sink} do not broadcast to {(*lead, *rows, 1)}")
        for mask in masks:
            scores = (*lead, *rows, k.shape[-2])
            if mask.dtype not in (boolean, dtype, f32) or broadcast_shapes(mask.shape, scores) != scores:
                raise ShapeError(f"attention: the mask {mask} does not broadcast to {scores}, or is not {dtype} or f32")
        return Tensor(dtype, (*lead, *rows, v.shape[-1]))

    @classmethod
    def sharding(cls, *tensors: Tensor, causal: bool, sinks: bool = False, **params: Any) -> ShardingRule:
        """Heads and values split; so do rows, unless their number says which keys they see."""
        q, k, v, *others = tensors
        lead = "abcdefgh"[: q.rank - 2]
        row = "." if causal or len(others) - sinks > 1 else "l"
        sides = [f"{lead}{row}.", f"{lead}..", f"{lead}.v"]
        masks = others[:-1] if sinks else others
        sides += [f"{lead}{row}."[len(lead) + 2 - mask.rank :] for mask in masks[:1]]
        sides += [".." for _ in masks[1:]]
        sides += [f"{lead}{row}."[len(lead) + 2 - sink.rank :] for sink in others[len(masks) :]]
        results = cls.infer(*tensors, causal=causal, sinks=sinks, **params)
        found = (f"{lead}{row}v", f"{lead}{row}") if isinstance(results, tuple) else (f"{lead}{row}v",)
        return einsum(f"{','.join(sides)}->{','.join(found)}", (q, k, v, *others))

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        causal: bool,
        scale: float,
        softcap: float = 0.0,
        sinks: bool = False,
        undefined: bool = False,
    ) -> Gradients:
        dtype = b.tensor(operands[0]).dtype
        g, q, k, v = (widened(b, value) for value in (grads[0], *operands[:3]))
        operands, sink = (operands[:-1], operands[-1]) if sinks else (operands, None)
        masks, on_lse = operands[3:4], grads[1:]
        rule = ScoreRule(causal, scale, softcap)
        if sink is None and (rows := rows_at_once(b, q, k, masks)):
            found = gradients_by_blocks(b, g, on_lse, q, k, v, masks, rule, rows)
            gradients: list[SSAValue | None] = [narrowed(b, value, dtype) for value in found]
            return (*gradients, *(None for _ in operands[3:]))
        made = row_gradients(b, g, on_lse, q, k, v, masks, rule, sink)
        gradients = [narrowed(b, value, dtype) for value in (made.q, made.k, made.v)]
        for mask in operands[3:4]:
            kind = b.tensor(mask).dtype
            gradients.append(None if kind == boolean else narrowed(b, made.scores, kind))
        gradients += [None for _ in operands[4:]]
        if sink is not None and made.sink is not None:
            gradients.append(narrowed(b, made.sink, b.tensor(sink).dtype))
        return tuple(gradients)

    @classmethod
    def jvp_with_values(
        cls, b: GraphBuilder, tangents: Sequence[SSAValue | None], operands: Values, **params: Any
    ) -> tuple[Values, Values] | None:
        """The results and their tangents by one kernel, where that is worth it: scores are many, or narrow."""
        moved = "".join(letter for letter, tangent in zip("qkv", tangents, strict=False) if tangent is not None)
        masks, (rows, width) = operands[3:], b.tensor(operands[0]).shape[-2:]
        keys, wide = b.tensor(operands[1]).shape[-2], b.tensor(operands[0]).dtype in (f32, f64)
        few = isinstance(rows, int) and isinstance(keys, int) and rows * keys < BY_BLOCKS_FROM
        special = params.get("sinks") or params.get("softcap") or len(masks) > 1 or width == 0
        if special or any(tangent is not None for tangent in tangents[3:]) or (wide and few):
            return None
        kept = {name: params[name] for name in ("causal", "scale", "undefined") if name in params}
        along = [tangent for tangent in tangents[:3] if tangent is not None]
        found = b.attention_with_tangent(*operands[:3], *along, *masks, moved=moved, **kept)
        count = 1 if cls.name == "graph.attention" else 2
        return found[:count], found[2 : 2 + count]

    @classmethod
    def batch(cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> Any:
        size = batch_size(b, operands, batched)
        tensors = [with_batch(b, x, flag, size) for x, flag in zip(operands[:3], batched[:3], strict=True)]
        rank = b.tensor(tensors[0]).rank - 1
        others = list(zip(operands, batched, strict=True))[3:]
        kept = [*others[:1], *others[-1:]] if params.get("sinks") and len(others) > 1 else others[:1]
        spread = [align_batched(b, x, rank) if flag else x for x, flag in kept]
        return b.emit(cls.name.removeprefix("graph."), *tensors, *spread, **params)


@op("attention", onnx="Attention", samples=_samples())
class Attention(AnyAttention):
    """`softmax(q kᵀ · scale + mask) v` over q [..., L, E], k [..., S, E] and v [..., S, V].

    An optional fourth operand, broadcast to [..., L, S], is a mask: numbers are added, and where booleans are false the
    key does not count. Four more, [tiles, 1], or five may tell of each tile of `SEEN_ROWS` rows what the mask does:
    from which key on and up to which one any of its rows sees keys, within these from where to where it leaves all
    scores as they are, and how many of the first keys are seen beside these. If `causal`, row i attends to keys 0 to i.
    A row without any key is zero, or NaN if that is `undefined`. Narrow floats are computed in f32. With a `softcap` c,
    scores are c · tanh(score / c) before they are masked. If there are `sinks`, the last operand, broadcast to
    [..., L, 1], has scores that softmax counts as if there was one key more, whose value is zero; one of -inf counts
    as none, so that a row without any key is as if there were no sinks.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, sinks: bool = False, **params: Any) -> Tensor:
        return cls.weighted(*tensors, sinks=sinks)

    @staticmethod
    @rounded_once
    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, **params: Any) -> np.ndarray:
        return _attended(q, k, v, *others, **params)[0]


@op("attention_with_lse", samples=_samples())
class AttentionWithLse(AnyAttention):
    """`attention`, and of each row the logarithm of the sum of its scores' exponentials: what gradients begin with.

    That is [..., L], in f32, or f64 where the operands are; -inf in a row without any key.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, sinks: bool = False, **params: Any) -> tuple[Tensor, Tensor]:
        result = cls.weighted(*tensors, sinks=sinks)
        return result, Tensor(f64 if result.dtype == f64 else f32, result.shape[:-1])

    @staticmethod
    def reference(q: np.ndarray, *others: np.ndarray, **params: Any) -> tuple[np.ndarray, np.ndarray]:
        wide = np.float64 if q.dtype == np.float64 else np.float32
        given = (x if x.dtype == np.bool_ else x.astype(wide) for x in others)
        out, lse = _attended(q.astype(wide), *given, **params)
        return out.astype(q.dtype), lse


def _attended(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *others: np.ndarray,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
    sinks: bool = False,
    undefined: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The sums of values, and the logarithm of the sum of powers of each row."""
    others, sink = (others[:-1], others[-1]) if sinks else (others, np.array(-np.inf, q.dtype))
    mask = others[0] if others else None
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    if softcap:
        scores = np.tanh(scores / q.dtype.type(softcap)) * q.dtype.type(softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    greatest = np.maximum(np.max(scores, axis=-1, keepdims=True, initial=-np.inf), sink)
    base = np.where(greatest == -np.inf, 0, greatest)
    powers = np.exp(scores - base)
    total = np.sum(powers, axis=-1, keepdims=True) + np.exp(sink - base)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.log(total) + base)[..., 0]
        means = np.matmul(powers, v) / (total if undefined else np.where(total == 0, 1, total))
    return means.astype(q.dtype), lse.astype(q.dtype)
