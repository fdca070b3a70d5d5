"""Derivatives of attention by blocks of rows: those of all rows at once, in memory that grows with the keys alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

import weft
from weft.ops.matmul import attention_rows
from weft.runtime.record import recording


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_rows, "BY_BLOCKS_FROM", 1)
    monkeypatch.setattr(attention_rows, "MOST_ROWS", 16)


def causal(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, is_causal=True)


def masked(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, attn_mask=torch.arange(q.shape[-2])[:, None] % 3 != torch.arange(k.shape[-2]) % 5)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k[:, :1], v[:, :1], enable_gqa=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("function", [causal, masked, grouped])
def test_second_derivatives_and_tangents_by_blocks(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    q, k, v, tq, tk, tv = torch.randn(6, 1, 2, 32, 4, dtype=torch.float64)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return function(q, k, v).pow(3).sum()

    places = (0, 1, 2)
    found = weft.jvp(weft.grad(loss, places), (q, k, v), (tq, tk, tv))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.func.jvp(torch.func.grad(loss, places), (q, k, v), (tq, tk, tv))
    torch.testing.assert_close(found, expected)


def test_tangents_of_gradients_inside_of_a_batch() -> None:
    torch.manual_seed(0)
    x, t = torch.randn(2, 3, 1, 2, 5, 4, dtype=torch.float64)

    def loss(x: Any) -> Any:
        return attend(x, x * 2, x.cos()).pow(3).sum()

    found = weft.vmap(lambda x, t: weft.jvp(lambda x: weft.grad(loss)(x), (x,), (t,))[1])(x, t)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = [torch.func.jvp(torch.func.grad(loss), (x[n],), (t[n],))[1] for n in range(3)]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("moved", [(0, 1, 2), (0,), (2,), (1, 2)])
@pytest.mark.parametrize("function", [causal, masked, grouped])
def test_values_and_tangents_come_of_one_kernel(
    function: Callable[..., Any], moved: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    factors, tangents = torch.randn(2, 3, 1, 2, 37, 16, dtype=dtype)

    def of(given: Any, *along: Any) -> Any:
        values = list(given)
        for place, value in zip(moved, along, strict=True):
            values[place] = value
        return function(*values)

    with recording() as records:
        found = weft.jvp(
            lambda *x: of(factors, *x), tuple(factors[place] for place in moved), tuple(tangents[p] for p in moved)
        )
    assert [kernel.label for record in records for kernel in record.kernels] == ["attention_with_tangent"]
    wide, along = factors.double(), tangents.double()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.func.jvp(
            lambda *x: of(wide, *x), tuple(wide[place] for place in moved), tuple(along[place] for place in moved)
        )
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm()) <= (5e-3 if dtype == torch.bfloat16 else 1e-3) * float(other.norm())


@pytest.mark.parametrize("function", [causal, masked, grouped])
def test_tangents_of_long_sequences_are_differentiated(function: Callable[..., Any]) -> None:
    """The gradient of a tangent, by blocks of rows; float64 decides."""
    torch.manual_seed(2)
    q, k, v, tq, tk, tv = torch.randn(6, 1, 2, 512, 4, dtype=torch.float64) / 2

    def slope(q: Any, k: Any, v: Any, of: Any) -> Any:
        return of.jvp(function, (q, k, v), (tq, tk, tv))[1].pow(2).sum()

    found = weft.grad(lambda *x: slope(*x, weft), (0, 1, 2))(q, k, v)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.func.grad(lambda *x: slope(*x, torch.func), (0, 1, 2))(q, k, v)
    torch.testing.assert_close(found, expected)


def test_tangents_alone_leave_values_as_they_are() -> None:
    """`linearize` computes values before tangents are there."""
    torch.manual_seed(3)
    x, t = torch.randn(2, 1, 2, 40, 16, dtype=torch.bfloat16)
    value, along = weft.func.linearize(lambda x: attend(x, x, x), x)
    torch.testing.assert_close((value, along(t)), weft.jvp(lambda x: attend(x, x, x), (x,), (t,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_flex_attention_stay_as_wide_as_they_are(dtype: torch.dtype) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def written_out(q: torch.Tensor) -> torch.Tensor:
        places = torch.arange(8, dtype=torch.float64)
        scores = q.double() @ k.double().mT / 2 + 0.3 * (places[:, None] - places)
        return torch.softmax(scores, -1) @ v.double()

    q, k, v, along = (torch.randn(1, 1, 8, 4, dtype=dtype) for _ in range(4))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = weft.jvp(
            lambda q: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.3 * (i - j)), (q,), (along,)
        )
    finally:
        torch.set_default_dtype(before)
    wanted = torch.func.jvp(written_out, (q.double(),), (along.double(),))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=tolerance, atol=tolerance)
