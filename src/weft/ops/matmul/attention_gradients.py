"""The gradients of scaled dot-product attention, from what a forward pass keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.ir.types import Tensor, bf16, f16, f32, f64
from weft.ops.base import Structured, op, same_dtype
from weft.ops.graph import GraphBuilder
from weft.ops.matmul.attention_dropout import SEED, kept_weights
from weft.ops.numerics import NARROW
from weft.ops.rules import Values, all_batched
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, einsum


def _samples() -> list[Sample]:
    def inputs(lead: tuple[int, ...], members: int, rows: int, keys: int, width: int, out: int) -> tuple[Input, ...]:
        many = (*lead, members, rows)
        shapes = (*many, out), (*many, width), (*lead, keys, width), (*lead, keys, out)
        operands = [Input(shape, -1.0, 1.0) for shape in shapes]
        return *operands, Input(many, 1.0, 3.0, f32), Input(many, -1.0, 1.0, f32)

    return [
        Sample(inputs(*sizes), {"causal": causal, "scale": 0.5}, (f32, f64, bf16, f16))
        for sizes in (((2,), 1, 5, 7, 4, 4), ((), 3, 9, 6, 8, 6), ((2, 2), 2, 33, 17, 4, 8))
        for causal in (False, True)
    ]


@op("attention_gradients", samples=_samples())
class AttentionGradients(Structured):
    """The gradients of q, k and v, given that of the result of their attention.

    Operands are the result's gradient [..., G, L, V], q [..., G, L, E], k [..., S, E] and v [..., S, V], and for each
    row [..., G, L] the logarithm of the sum of its powers and the product of its result with the result's gradient.
    The G members of a group attend to the same keys. If `causal`, row i attends to keys 0 to i. Narrow floats are
    computed in f32, but that weights are rounded for the products that sum them up. If weights were dropped with some
    probability, `dropout`, one more operand is the seed that decided on them.
    """

    NO_RULE: ClassVar[Mapping[str, str]] = {"vjp": "it is made of what torch traces backwards; attention has a rule"}

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, Tensor, Tensor]:
        grad, q, k, v, *rows = tensors
        seeds = [rows.pop()] if params.get("dropout") else []
        if any(seed != SEED for seed in seeds):
            raise ShapeError(f"attention_gradients: a seed is {SEED}, not {seeds[0]}")
        same_dtype("attention_gradients", (grad, q, k, v))
        if not all(tensor.dtype.is_float for tensor in (grad, q, k, v, *rows)):
            raise DTypeError(f"attention_gradients takes floats, got {', '.join(map(str, tensors))}")
        many, lead = q.shape[:-1], k.shape[:-2]
        fits = (
            q.rank == k.rank + 1 >= 3
            and grad.shape == (*many, v.shape[-1])
            and k.shape == (*q.shape[:-3], k.shape[-2], q.shape[-1])
            and v.shape[:-1] == (*lead, k.shape[-2])
            and [row.shape for row in rows] == [many, many]
        )
        if not fits:
            raise ShapeError(
                f"attention_gradients: {', '.join(map(str, tensors))} do not fit",
                hint="it takes [..., G, L, V], [..., G, L, E], [..., S, E], [..., S, V] and twice [..., G, L]",
            )
        return q, k, v

    @staticmethod
    def sharding(*tensors: Tensor, **params: Any) -> ShardingRule:
        if params.get("dropout"):  # a weight's place among all decides whether it was dropped
            sides = ["." * tensor.rank for tensor in tensors]
            return einsum(f"{','.join(sides)}->{','.join(sides[1:4])}", tensors)
        lead = "abcdefgh"[: tensors[2].rank - 2]
        sides = f"{lead}...,{lead}...,{lead}..,{lead}..,{lead}..,{lead}..->{lead}...,{lead}..,{lead}.."
        return einsum(sides, tensors)

    @staticmethod
    def reference(
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        logsumexp: np.ndarray,
        means: np.ndarray,
        *seeds: np.ndarray,
        causal: bool,
        scale: float,
        dropout: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        dtype = q.dtype
        wide = np.dtype(np.float32) if dtype in NARROW else dtype
        grad, q, k, v = (x.astype(wide) for x in (grad, q, k, v))
        keys, values = (np.expand_dims(x, -3) for x in (k, v))
        shares = np.exp(np.matmul(q, np.swapaxes(keys, -1, -2)) * scale - logsumexp[..., None])
        if causal:
            shares = np.where(np.tri(*shares.shape[-2:], dtype=bool), shares, 0)
        on_shares = np.matmul(grad, np.swapaxes(values, -1, -2))
        counted = shares
        if dropout:
            kept = kept_weights(seeds[0], shares.shape, dropout)
            counted, on_shares = (np.where(kept, x, 0) / wide.type(1 - dropout) for x in (shares, on_shares))
        on_scores = shares * (on_shares - means[..., None]) * scale
        on_keys = np.matmul(np.swapaxes(on_scores, -1, -2), q).sum(-3)
        on_values = np.matmul(np.swapaxes(counted, -1, -2), grad).sum(-3)
        return np.matmul(on_scores, keys).astype(dtype), on_keys.astype(dtype), on_values.astype(dtype)

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], causal: bool, scale: float, dropout: float = 0.0
    ) -> tuple[SSAValue, ...]:
        if dropout:
            raise UnsupportedError("gradients of attention with dropout have no batching rule: one seed serves all")
        return b.attention_gradients(*all_batched(b, operands, batched), causal=causal, scale=scale)
