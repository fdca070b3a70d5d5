"""Several masks on the scores of written-out attention: what lowest numbers give in rows that one of them hides."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.ir.types import Tensor, boolean, f32, i64
from weft.ops import composites
from weft.passes.attention.recognize_attention import RecognizeAttention
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.fold_constants import FoldConstants
from weft.passes.simplify.simplify import Simplify

PASSES = (FoldConstants(), Simplify(), RecognizeAttention(), Simplify(), EliminateDead())
LOW = float(np.finfo(np.float32).min)
B, L, E = 3, 6, 4


def applied(b: Any, x: Any, seen: Any, form: str) -> Any:
    """Scores under one mask: replaced or added to, by the lowest number or -∞."""
    how, what = form.split()
    low = b.full_like(x, LOW if what == "lowest" else -math.inf)
    return b.where(seen, x, low) if how == "fill" else b.add(x, b.where(seen, b.full_like(x, 0), low))


FORMS = [f"{how} {what}" for how in ("fill", "add") for what in ("lowest", "infinite")]


@pytest.mark.parametrize("causal_first", [True, False])
@pytest.mark.parametrize(("first", "second"), [*itertools.product(FORMS, FORMS)])
def test_causal_masks_and_padding(passes: Any, first: str, second: str, causal_first: bool) -> None:
    """Left padding hides all that a causal mask lets the first rows see."""

    def body(b: Any, q: Any, k: Any, v: Any, pad: Any) -> Any:
        row, key = b.iota(shape=(L, 1), dim=0, dtype=i64), b.iota(shape=(1, L), dim=1, dtype=i64)
        causal = b.ge(row, key)
        x = b.dot(q, b.permute(k, dims=(0, 2, 1)))
        for seen, form in zip((causal, pad) if causal_first else (pad, causal), (first, second), strict=True):
            x = applied(b, x, seen, form)
        return b.dot(composites.softmax(b, x, 2), v)

    tensors = {**{name: Tensor(f32, (B, L, E)) for name in "qkv"}, "pad": Tensor(boolean, (B, 1, L))}
    module = passes.built(tensors, body)
    original = passes.function(module.clone())
    for each in PASSES:
        each.apply(Context(), module)
    module.verify()
    assert "graph.attention" in str(module)
    rng = generator()
    arrays = [rng.standard_normal((B, L, E)).astype(np.float32) for _ in range(3)]
    pad = np.arange(L) >= np.array([[[0]], [[3]], [[L]]])  # none, half and all of a sequence
    (wanted,), (found,) = (run(f, [*arrays, pad]) for f in (original, passes.function(module)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_numbers_that_are_added_may_be_lowest_too(passes: Any) -> None:
    def body(b: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        row, key = b.iota(shape=(L, 1), dim=0, dtype=i64), b.iota(shape=(1, L), dim=1, dtype=i64)
        x = b.add(b.dot(q, b.permute(k, dims=(0, 2, 1))), bias)
        return b.dot(composites.softmax(b, applied(b, x, b.ge(row, key), "fill lowest"), 2), v)

    tensors = {**{name: Tensor(f32, (B, L, E)) for name in "qkv"}, "bias": Tensor(f32, (B, 1, L))}
    module = passes.built(tensors, body)
    original = passes.function(module.clone())
    for each in PASSES:
        each.apply(Context(), module)
    rng = generator()
    arrays = [rng.standard_normal((B, L, E)).astype(np.float32) for _ in range(3)]
    bias = np.where(np.arange(L) < 3, np.float32(LOW), np.float32(0)) * np.ones((B, 1, 1), np.float32)
    (wanted,), (found,) = (run(f, [*arrays, bias]) for f in (original, passes.function(module)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [boolean, f32])
def test_no_keys_at_all_give_zeros(passes: Any, dtype: Any) -> None:
    """Softmax of no scores has no element that could be NaN."""

    def body(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        x = b.dot(q, b.permute(k, dims=(0, 2, 1)))
        x = b.where(mask, x, b.full_like(x, -math.inf)) if dtype is boolean else b.add(x, mask)
        return b.dot(composites.softmax(b, x, 2), v)

    keys = Tensor(f32, (B, 0, E))
    module = passes.built({"q": Tensor(f32, (B, L, E)), "k": keys, "v": keys, "mask": Tensor(dtype, (L, 0))}, body)
    for each in PASSES:
        each.apply(Context(), module)
    arrays = [np.ones((B, L, E), np.float32), *[np.ones((B, 0, E), np.float32)] * 2, np.ones((L, 0), dtype.numpy)]
    (found,) = run(passes.function(module), arrays)
    np.testing.assert_array_equal(found, np.zeros((B, L, E)))
