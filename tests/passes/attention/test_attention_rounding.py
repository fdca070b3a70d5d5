"""Written-out attention over values that were rounded on purpose: what was rounded stays so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.ir.types import DType, Tensor, bf16, f8e4m3, f16, f32
from weft.ops import composites
from weft.ops.matmul.attention import Attention
from weft.passes.attention.recognize_attention import RecognizeAttention
from weft.passes.simplify.eliminate_dead import EliminateDead

B, L, E = 2, 6, 8


def through(b: Any, x: Any, dtype: DType, by: float = 1.0) -> Any:
    """A value times a number, rounded to a type and back."""
    own = b.tensor(x).dtype
    scaled = x if by == 1.0 else b.mul(x, b.full_like(x, by))
    return b.cast(b.cast(scaled, dtype=dtype), dtype=own)


ROUNDED: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "queries to 8 bits": ("q", lambda b, x: through(b, x, f8e4m3)),
    "keys to 8 bits": ("k", lambda b, x: through(b, x, f8e4m3)),
    "values to 8 bits": ("v", lambda b, x: through(b, x, f8e4m3)),
    "queries to 16 bits": ("q", lambda b, x: through(b, x, bf16)),
    "queries beyond f16": ("q", lambda b, x: through(b, x, f16, 1e5)),
    "scores to 8 bits": ("scores", lambda b, x: through(b, x, f8e4m3)),
    "scores to 16 bits": ("scores", lambda b, x: through(b, x, bf16)),
    "weights to 8 bits": ("weights", lambda b, x: through(b, x, f8e4m3)),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_what_was_rounded_stays_so(passes: Any, case: str) -> None:
    where, rounding = ROUNDED[case]

    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        def at(name: str, x: Any) -> Any:
            return rounding(b, x) if name == where else x

        x = at("scores", b.dot(at("q", q), b.permute(at("k", k), dims=(0, 2, 1))))
        return b.dot(at("weights", composites.softmax(b, x, 2)), at("v", v))

    module = passes.built({name: Tensor(f32, (B, L, E)) for name in "qkv"}, body)
    original = passes.function(module.clone())
    for each in (RecognizeAttention(), EliminateDead()):
        each.apply(Context(), module)
    module.verify()
    rng = generator()
    arrays = [rng.standard_normal((B, L, E)).astype(np.float32) for _ in range(3)]
    with np.errstate(all="ignore"):
        (wanted,), (found,) = (run(f, arrays) for f in (original, passes.function(module)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scaled", [0.125, 1e5])
def test_scaled_queries_that_are_rounded_to_their_own_type(passes: Any, scaled: float) -> None:
    """The kernel scales scores instead, unless f16 cannot hold what comes out."""

    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        wide = b.cast(q, dtype=f32)
        q = b.cast(b.mul(wide, b.full_like(wide, scaled)), dtype=f16)
        return b.dot(composites.softmax(b, b.dot(q, b.permute(k, dims=(0, 2, 1))), 2), v)

    module = passes.built({name: Tensor(f16, (B, L, E)) for name in "qkv"}, body)
    for each in (RecognizeAttention(narrow=True), EliminateDead()):
        each.apply(Context(), module)
    (found,) = [op for op in module.walk() if isinstance(op, Attention)]
    assert found.params["scale"] == (scaled if scaled < 1 else 1.0)


def test_a_factor_that_repeats_scores_stays(passes: Any) -> None:
    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        x = b.dot(q, b.permute(k, dims=(0, 2, 1)))
        x = b.reshape(x, shape=(1, B, L, L))
        x = b.mul(x, b.full(value=0.5, shape=(3, B, L, L), dtype=f32))
        weights = b.reshape(composites.softmax(b, x, 3), shape=(3 * B, L, L))
        return b.dot(weights, v)

    tensors = {**{name: Tensor(f32, (B, L, E)) for name in "qk"}, "v": Tensor(f32, (3 * B, L, E))}
    module = passes.apply((RecognizeAttention(), EliminateDead()), passes.built(tensors, body), rtol=1e-5)
    assert "graph.attention" not in str(module)
