"""`pack_gqa`: single queries that share keys become rows; others stay."""

from __future__ import annotations

from typing import Any

import pytest

from weft.ir.types import Tensor, bf16, boolean
from weft.passes.attention.pack_gqa import PackGqa
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.simplify import Simplify

B, HEADS, TIMES, S, E = 2, 3, 4, 7, 8
PASSES = (Simplify(), PackGqa(), Simplify(), EliminateDead())


def repeated(b: Any, x: Any) -> Any:
    spread = b.broadcast(b.reshape(x, shape=(B, HEADS, 1, S, E)), shape=(B, HEADS, TIMES, S, E))
    return b.reshape(spread, shape=(B, HEADS * TIMES, S, E))


def given(rows: int, mask: tuple[int, ...] = ()) -> dict[str, Tensor]:
    tensors = {
        "q": Tensor(bf16, (B, HEADS * TIMES, rows, E)),
        **{name: Tensor(bf16, (B, HEADS, S, E)) for name in "kv"},
    }
    return {**tensors, "m": Tensor(boolean, mask)} if mask else tensors


@pytest.mark.parametrize(
    ("mask", "of_rows"),
    [
        ((), ()),
        ((S,), (1, 1, 1, S)),
        ((B, 1, 1, S), (B, 1, 1, S)),
        ((1, HEADS * TIMES, 1, S), (1, HEADS, TIMES, S)),
    ],
)
def test_single_queries_become_rows(passes: Any, mask: tuple[int, ...], of_rows: tuple[int, ...]) -> None:
    def before(b: Any, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        return b.attention(q, repeated(b, k), repeated(b, v), *masks, causal=False, scale=0.5, softcap=3.0)

    def after(b: Any, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        rows = b.reshape(q, shape=(B, HEADS, TIMES, E))
        masks = tuple(m if mask == of_rows else b.reshape(m, shape=of_rows) for m in masks)
        made = b.attention(rows, k, v, *masks, causal=False, scale=0.5, softcap=3.0)
        return b.reshape(made, shape=(B, HEADS * TIMES, 1, E))

    passes.rewrites(PASSES, given(1, mask), before, after, rtol=1e-2)


def test_sinks_of_heads_become_those_of_rows(passes: Any) -> None:
    params = {"causal": False, "scale": 0.5, "sinks": True}

    def before(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        sinks = b.cast(m, dtype=bf16)
        return b.attention(q, repeated(b, k), repeated(b, v), sinks, **params)

    def after(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        sinks = b.cast(m, dtype=bf16)
        rows, sinks = b.reshape(q, shape=(B, HEADS, TIMES, E)), b.reshape(sinks, shape=(1, HEADS, TIMES, 1))
        made = b.attention(rows, k, v, sinks, **params)
        return b.reshape(made, shape=(B, HEADS * TIMES, 1, E))

    passes.rewrites(PASSES, given(1, (1, HEADS * TIMES, 1, 1)), before, after, rtol=1e-2)


def test_heads_with_a_dimension_of_their_own(passes: Any) -> None:
    def spread(b: Any, x: Any) -> Any:
        return b.broadcast(b.reshape(x, shape=(B, HEADS, 1, S, E)), shape=(B, HEADS, TIMES, S, E))

    def before(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        q = b.reshape(q, shape=(B, HEADS, TIMES, 1, E))
        return b.attention(q, spread(b, k), spread(b, v), m, causal=False, scale=0.5)

    def after(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        rows, mask = b.reshape(q, shape=(B, HEADS, TIMES, E)), b.reshape(m, shape=(1, 1, TIMES, S))
        made = b.attention(rows, k, v, mask, causal=False, scale=0.5)
        return b.reshape(made, shape=(B, HEADS, TIMES, 1, E))

    passes.rewrites(PASSES, given(1, (TIMES, 1, S)), before, after, rtol=1e-2)


@pytest.mark.parametrize(("rows", "causal", "shared"), [(2, False, True), (1, True, True), (1, False, False)])
def test_what_stays(passes: Any, rows: int, causal: bool, shared: bool) -> None:
    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        values = repeated(b, v) if shared else b.concat(v, v, v, v, dim=1)
        return b.attention(q, repeated(b, k), values, causal=causal, scale=0.5)

    passes.rewrites(PASSES, given(rows), body, body)
