"""Scaled dot-product attention and its derivative along a direction, computed beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.types import Tensor, bf16, boolean, f16, f32, f64
from weft.ops.base import Precision, Structured, op, same_dtype
from weft.ops.composites import narrowed, widened
from weft.ops.graph import GraphBuilder
from weft.ops.matmul.attention import AnyAttention
from weft.ops.matmul.attention_rows import ScoreRule, by_row_blocks, rows_at_once, shares_of
from weft.ops.matmul.dot import transposed
from weft.ops.rules import Gradients, Values, align_batched, batch_size, with_batch, zeros
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, einsum

_DTYPES = (f32, f64, bf16, f16)
_FACTORS = "qkv"


def _samples() -> list[Sample]:
    def inputs(moved: str, lead: tuple[int, ...], rows: int, columns: int, width: int, out: int) -> tuple[Input, ...]:
        shapes = (*lead, rows, width), (*lead, columns, width), (*lead, columns, out)
        factors = [Input(shape, -1.0, 1.0) for shape in shapes]
        return *factors, *(factors[_FACTORS.index(letter)] for letter in moved)

    small, wide = ((2, 3), 5, 7, 4, 4), ((2,), 17, 33, 8, 6)
    plain = {"causal": False, "scale": 0.5}
    return [
        Sample(inputs("qkv", *small), {**plain, "moved": "qkv"}, _DTYPES),
        Sample(inputs("qkv", *wide), {"causal": True, "scale": 0.3, "moved": "qkv"}, _DTYPES),
        Sample(inputs("q", *small), {**plain, "moved": "q"}, _DTYPES),
        Sample(inputs("v", *wide), {**plain, "moved": "v"}, _DTYPES),
        Sample((*inputs("qk", *small), Input((5, 7))), {**plain, "moved": "qk"}, _DTYPES),
        Sample((*inputs("kv", *small), Input((2, 1, 1, 7), dtype=boolean)), {**plain, "moved": "kv"}, _DTYPES),
        Sample(inputs("qkv", (), 1, 9, 4, 4), {**plain, "moved": "qkv"}, _DTYPES),
        Sample(inputs("qkv", (2,), 5, 1, 4, 4), {**plain, "moved": "qkv"}, _DTYPES),
        Sample(inputs("qkv", (2, 0), 3, 4, 2, 2), {**plain, "moved": "qkv"}, _DTYPES),
    ]


@op("attention_with_tangent", samples=_samples())
class AttentionWithTangent(Structured):
    """`attention_with_lse`, and the tangents of both results along those of the factors that are `moved`.

    Operands are q [..., L, E], k [..., S, E] and v [..., S, V], the tangents of those of them whose letters are in
    `moved`, in the order q, k, v, and perhaps a mask. With P = softmax(q kᵀ · scale + mask), T the tangent of the
    scores and m = Σ P T of each row, the tangent of the result is (P (T - m)) v + P v̇, and that of the logarithm is m.
    Of a row without any key, tangents are zero, or NaN if that is `undefined`.
    """

    AUTOCAST: ClassVar[Precision] = "narrow"

    @property
    def masks(self) -> Sequence[SSAValue]:
        return self.operands[3 + len(self.params["moved"]) :]

    @property
    def seen(self) -> Sequence[SSAValue]:
        return ()

    @property
    def sinks(self) -> Sequence[SSAValue]:
        return ()

    def tangent(self, letter: str) -> int | None:
        """The number of the operand that is a factor's tangent, if it has one."""
        moved: str = self.params["moved"]
        return 3 + moved.index(letter) if letter in moved else None

    @classmethod
    def infer(cls, *tensors: Tensor, moved: str, **params: Any) -> tuple[Tensor, ...]:
        factors, tangents, masks = tensors[:3], tensors[3 : 3 + len(moved)], tensors[3 + len(moved) :]
        expected = [factors[_FACTORS.index(letter)] for letter in moved if letter in _FACTORS]
        if list(tangents) != expected or list(moved) != sorted(set(moved), key=_FACTORS.find) or len(masks) > 1:
            raise ShapeError(
                f"attention_with_tangent: {', '.join(map(str, tensors))} do not fit what is moved, {moved!r}",
                hint="it takes q, k, v, the tangents of those that are moved, each like its factor, and perhaps a mask",
            )
        same_dtype("attention_with_tangent", factors)
        result = AnyAttention.weighted(*factors, *masks)
        lse = Tensor(f64 if result.dtype == f64 else f32, result.shape[:-1])
        return result, lse, result, lse

    @staticmethod
    def reference(
        *arrays: np.ndarray, moved: str, causal: bool, scale: float, undefined: bool = False
    ) -> tuple[np.ndarray, ...]:
        dtype, of_rows = arrays[0].dtype, np.float64 if arrays[0].dtype == np.float64 else np.float32
        q, k, v, *others = (x if x.dtype == np.bool_ else x.astype(np.float64) for x in arrays)
        tangents = dict(zip(moved, others, strict=False))
        scores, slopes = np.matmul(q, np.swapaxes(k, -1, -2)) * scale, np.zeros(())
        if "q" in tangents:
            slopes = slopes + np.matmul(tangents["q"], np.swapaxes(k, -1, -2)) * scale
        if "k" in tangents:
            slopes = slopes + np.matmul(q, np.swapaxes(tangents["k"], -1, -2)) * scale
        for mask in others[len(moved) :]:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
        if causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        greatest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        base = np.where(greatest == -np.inf, 0, greatest)
        powers = np.exp(scores - base)
        total = np.sum(powers, axis=-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            lse = np.log(total) + base
            shares = powers / (total if undefined else np.where(total == 0, 1, total))
        mean = np.sum(shares * slopes, axis=-1, keepdims=True)
        tangent = np.matmul(shares * (slopes - mean), v)
        if "v" in tangents:
            tangent = tangent + np.matmul(shares, tangents["v"])
        logarithms = (x[..., 0].astype(of_rows) for x in (lse, mean))
        values = (x.astype(dtype) for x in (np.matmul(shares, v), tangent))
        return tuple(each for pair in zip(values, logarithms, strict=True) for each in pair)

    @staticmethod
    def sharding(*tensors: Tensor, moved: str, causal: bool, **params: Any) -> ShardingRule:
        """Heads and values split; so do rows, unless their number says which keys they see."""
        lead, row = "abcdefgh"[: tensors[0].rank - 2], "." if causal else "l"
        sides = {"q": f"{lead}{row}.", "k": f"{lead}..", "v": f"{lead}.v"}
        masks = [f"{lead}{row}."[len(lead) + 2 - mask.rank :] for mask in tensors[3 + len(moved) :]]
        given = [*sides.values(), *(sides[letter] for letter in moved), *masks]
        return einsum(f"{','.join(given)}->{lead}{row}v,{lead}{row},{lead}{row}v,{lead}{row}", tensors)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        moved: str,
        causal: bool,
        scale: float,
        undefined: bool = False,
    ) -> Gradients:
        dtypes = [b.tensor(operand).dtype for operand in operands]
        q, k, v, *others = (x if b.tensor(x).dtype == boolean else widened(b, x) for x in operands)
        tangents, masks = dict(zip(moved, others, strict=False)), others[len(moved) :]
        on_results = [widened(b, grad) for grad in grads]
        rule = ScoreRule(causal, scale, 0.0)
        rows = rows_at_once(b, q, k, masks)
        factors = {"q": q, "k": k, "v": v, **{f"t{letter}": value for letter, value in tangents.items()}}
        of_rows = [name for name in ("q", "tq") if name in factors]
        of_keys = [name for name in factors if name not in of_rows]
        if not rows:
            found = _row_gradients(b, on_results, factors, masks, rule, None)
        else:

            def part(b: GraphBuilder, first: SSAValue, own: Values, masks: Values) -> tuple[list[Any], list[Any]]:
                out, tangent, *rest = own
                mine = {**factors, **dict(zip(of_rows, rest, strict=False))}
                lse, mean = rest[len(of_rows) :]
                found = _row_gradients(b, (out, lse, tangent, mean), mine, masks, rule, first)
                return [found[name] for name in of_keys], [found[name] for name in of_rows]

            out, lse, tangent, mean = on_results
            own = [out, tangent, *(factors[name] for name in of_rows), lse, mean]
            sums, made = by_row_blocks(b, part, own, masks, [factors[name] for name in of_keys], rows)
            found = dict(zip((*of_keys, *of_rows), (*sums, *made), strict=True))
        names = [*_FACTORS, *(f"t{letter}" for letter in moved)]
        gradients: list[SSAValue | None] = [
            narrowed(b, found[name], dtype) for name, dtype in zip(names, dtypes, strict=False)
        ]
        for dtype in dtypes[len(names) :]:
            gradients.append(None if dtype == boolean else narrowed(b, found["scores"], dtype))
        return tuple(gradients)

    @classmethod
    def batch(cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], moved: str, **params: Any) -> Any:
        size, count = batch_size(b, operands, batched), 3 + len(moved)
        flags = list(batched)
        tensors = [with_batch(b, x, flag, size) for x, flag in zip(operands[:count], flags[:count], strict=True)]
        rank = b.tensor(tensors[0]).rank - 1
        masks = [
            align_batched(b, x, rank) if flag else x for x, flag in zip(operands[count:], flags[count:], strict=True)
        ]
        return b.attention_with_tangent(*tensors, *masks, moved=moved, **params)


def _row_gradients(
    b: GraphBuilder,
    grads: Values,
    factors: dict[str, SSAValue],
    masks: Values,
    rule: ScoreRule,
    first: SSAValue | None,
) -> dict[str, SSAValue]:
    """What rows contribute to the gradients of factors and of their tangents, `tq` and so on, and of scores."""
    on_out, on_lse, on_tangent, on_mean = grads
    q, k, v = (factors[letter] for letter in _FACTORS)
    _, shares, _ = shares_of(b, q, k, masks, rule, None, first)
    last = (b.tensor(shares).rank - 1,)

    def column(x: SSAValue) -> SSAValue:
        return b.reshape(x, shape=(*b.tensor(x).shape, 1))

    def total(x: SSAValue) -> SSAValue:
        return b.sum(x, dims=last, keep=True)

    def scaled(x: SSAValue) -> SSAValue:
        return b.mul(x, b.full_like(x, rule.scale))

    slopes = zeros(b, shares)
    if "tq" in factors:
        slopes = b.add(slopes, scaled(b.dot(factors["tq"], transposed(b, k))))
    if "tk" in factors:
        slopes = b.add(slopes, scaled(b.dot(q, transposed(b, factors["tk"]))))
    mean = total(b.mul(shares, slopes))
    on_moved = b.dot(on_tangent, transposed(b, v))  # of the tangent of shares, P (T - m)
    on_slopes_mean = b.sub(total(b.mul(shares, on_moved)), column(on_mean))
    on_slopes = b.mul(shares, b.sub(on_moved, on_slopes_mean))
    on_shares = b.add(b.dot(on_out, transposed(b, v)), b.mul(on_moved, b.sub(slopes, mean)))
    on_shares = b.sub(on_shares, b.mul(slopes, on_slopes_mean))
    if "tv" in factors:
        on_shares = b.add(on_shares, b.dot(on_tangent, transposed(b, factors["tv"])))
    beside = b.sub(total(b.mul(shares, on_shares)), column(on_lse))
    on_scores = b.mul(shares, b.sub(on_shares, beside))
    ahead, along = scaled(on_scores), scaled(on_slopes)
    moved = b.mul(shares, b.sub(slopes, mean))
    found = {
        "q": b.dot(ahead, k),
        "k": b.dot(transposed(b, ahead), q),
        "v": b.add(b.dot(transposed(b, shares), on_out), b.dot(transposed(b, moved), on_tangent)),
        "scores": on_scores,
    }
    if "tq" in factors:
        found["tq"] = b.dot(along, k)
        found["k"] = b.add(found["k"], b.dot(transposed(b, along), factors["tq"]))
    if "tk" in factors:
        found["tk"] = b.dot(transposed(b, along), q)
        found["q"] = b.add(found["q"], b.dot(along, factors["tk"]))
    if "tv" in factors:
        found["tv"] = b.dot(transposed(b, shares), on_tangent)
    return found
