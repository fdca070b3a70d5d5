"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.types import Tensor, boolean, f32, f64
from weft.ops.base import Structured, broadcast_shapes, op, same_dtype
from weft.ops.dot import transposed
from weft.ops.graph import GraphBuilder
from weft.ops.rules import Gradients, Values, all_batched
from weft.ops.samples import Input, Sample

_QUERY, _KEY = Input((2, 3, 5, 8)), Input((2, 3, 7, 8))


@op(
    "attention",
    samples=[
        Sample((_QUERY, _KEY, _KEY), {"causal": False, "scale": 0.35}, (f32, f64)),
        Sample((_KEY, _KEY, _KEY), {"causal": True, "scale": 0.35}, (f32, f64)),
        Sample((Input((1, 1, 1, 16)), Input((1, 1, 33, 16)), Input((1, 1, 33, 4))), {"causal": False, "scale": 0.25}),
        Sample((_QUERY, _KEY, _KEY, Input((5, 7))), {"causal": False, "scale": 0.35}, (f32, f64)),
        Sample((_QUERY, _KEY, _KEY, Input((2, 1, 5, 7))), {"causal": False, "scale": 0.35}),
    ],
)
class Attention(Structured):
    """`softmax(scale * q @ k.T + mask) @ v` for q [..., L, E], k [..., S, E], v [..., S, F].

    A fourth operand is added to the scores, or, if boolean, keeps those where it is true; it broadcasts. `causal` keeps
    the keys up to the query's own position, counted from the start of both. A row with no key left is zero.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        q, k, v, *masks = tensors
        dtype = same_dtype("attention", (q, k, v))
        fits = q.rank >= 2 and q.rank == k.rank == v.rank and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        if not fits or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
            raise ShapeError(f"attention: {q}, {k} and {v} do not fit", hint="it takes [..., L, E], [..., S, E], [..., S, F]")
        scores = (*q.shape[:-1], k.shape[-2])
        for mask in masks:
            if mask.dtype not in (dtype, boolean):
                raise DTypeError(f"attention: a mask of {mask.dtype} for scores of {dtype}", hint="cast it")
            if broadcast_shapes(mask.shape, scores) != scores:
                raise ShapeError(f"attention: the mask {mask} does not broadcast to {tuple(map(str, scores))}")
        return Tensor(dtype, (*q.shape[:-1], v.shape[-1]))

    @staticmethod
    def reference(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, *masks: np.ndarray, causal: bool, scale: float
    ) -> np.ndarray:
        wide = np.float64 if q.dtype == np.float64 else np.float32
        scores = np.matmul(q.astype(wide), np.swapaxes(k.astype(wide), -1, -2)) * wide(scale)
        for mask in masks:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask.astype(wide)
        if causal:
            kept = np.arange(k.shape[-2])[None, :] <= np.arange(q.shape[-2])[:, None]
            scores = np.where(kept, scores, -np.inf)
        highest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
        total = np.sum(weights, axis=-1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
        return np.matmul(weights, v.astype(wide)).astype(q.dtype)

    @staticmethod
    def vjp(
        b: GraphBuilder, grads: Values, operands: Values, results: Values, causal: bool, scale: float
    ) -> Gradients:
        from weft.ops.composites import softmax

        (grad,), (q, k, v, *masks) = grads, operands
        scores = b.mul(b.dot(q, transposed(b, k)), b.full_like(q, scale))
        least = b.full_like(q, float("-inf"))
        for mask in masks:
            scores = b.where(mask, scores, least) if b.tensor(mask).dtype == boolean else b.add(scores, mask)
        if causal:
            rows, columns = b.tensor(scores).shape[-2:]
            row = b.iota(shape=(rows, 1), dim=0, dtype=f32, start=0, step=1)
            column = b.iota(shape=(1, columns), dim=1, dtype=f32, start=0, step=1)
            scores = b.where(b.le(column, row), scores, least)
        last = (b.tensor(scores).rank - 1,)
        weights = softmax(b, scores, last[0])
        inner = b.dot(grad, transposed(b, v))
        moved = b.mul(weights, b.sub(inner, b.sum(b.mul(weights, inner), dims=last, keep=True)))
        scaled = b.mul(moved, b.full_like(q, scale))
        gradients = [b.dot(scaled, k), b.dot(transposed(b, scaled), q), b.dot(transposed(b, weights), grad)]
        for mask in masks:
            gradients.append(None if b.tensor(mask).dtype == boolean else moved)
        return tuple(gradients)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], causal: bool, scale: float) -> SSAValue:
        q, k, v, *masks = all_batched(b, operands, batched)
        rank = b.tensor(q).rank
        for position, mask in enumerate(masks):
            # The mask aligns at its last dimension, so its batch dimension has to stand in front of all others.
            size, *rest = b.tensor(mask).shape
            masks[position] = b.reshape(mask, shape=(size, *([1] * (rank - 1 - len(rest))), *rest))
        return b.attention(q, k, v, *masks, causal=causal, scale=scale)
