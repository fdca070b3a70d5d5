"""Every error of `weft.func` names the user's line, also where a graph, which knows none, is at fault."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.func import checkpoint, custom, jacfwd, value_and_grad

X = torch.ones(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: weft.grad(3),  # pyright: ignore[reportArgumentType]
        lambda: custom(3),  # pyright: ignore[reportArgumentType]
        lambda: weft.grad(lambda x, o: x.sum())(X, {1, 2}),
        lambda: weft.grad(lambda x: x.sum(), has_aux=True)(X),
        lambda: value_and_grad(lambda x: (x.sum(),), has_aux=True)(X),
        lambda: weft.vmap(torch.sin, randomness="some"),
        lambda: weft.vmap(torch.sin, out_axes=3)(X),
        lambda: weft.jvp(torch.sin, X, X),  # pyright: ignore[reportArgumentType]
        lambda: jacfwd(torch.sin, randomness="different"),
        lambda: weft.vmap(torch.sin, out_axes=None)(X),
        lambda: weft.grad(lambda x: checkpoint(torch.sin, save="nothing_known")(x).sum())(X),
        lambda: weft.grad(lambda a: torch.linalg.qr(a, mode="r")[1].sum())(torch.eye(3)),
        lambda: weft.vjp(lambda a: torch.linalg.qr(a, mode="r")[1], torch.eye(3)),
        lambda: weft.jvp(lambda a: torch.linalg.qr(a, mode="r")[1], (torch.eye(3),), (torch.eye(3),)),
    ],
)
def test_an_error_names_the_line(call) -> None:
    with pytest.raises(weft.WeftError) as error:
        call()
    line = error.value.location or "none"
    assert "test_error_lines.py:" in line and line in str(error.value)


def test_what_is_pulled_back_is_called_a_gradient_of_a_result() -> None:
    pull = weft.vjp(lambda x: x * 2, X)[1]
    with pytest.raises(weft.ShapeError, match="a gradient of"):
        pull(torch.ones(4))


def test_a_gradient_of_flex_attention_inside_of_a_captured_function_says_what_would_work() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 1, 8, 4)
    with pytest.raises(weft.UnsupportedError, match="FlexAttention") as raised:
        weft.grad(lambda q: weft.grad(lambda q: flex_attention(q, q, q).sum())(q).sum())(q)
    assert raised.value.hint is not None and "weft.grad(weft.grad(f))" in raised.value.hint
