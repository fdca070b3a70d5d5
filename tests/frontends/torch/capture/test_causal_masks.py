"""Masks of attention that are causal: they are seen to be, however they are computed, and no others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from weft.frontends.torch import backend
from weft.frontends.torch.capture import causal_masks, constant_masks
from weft.frontends.torch.capture.causal_masks import state_causal_masks
from weft.runtime.record import recording

SIDE = 37


def compared() -> torch.Tensor:
    at = torch.arange(SIDE)
    return at[:, None] >= at[None, :]


def of_documents() -> torch.Tensor:
    """As decoders of transformers make it of their positions, which say where a document begins."""
    positions = torch.arange(SIDE).expand(2, -1)
    begins = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    document = begins.cumsum(-1)
    return compared() & (document[:, :, None] == document[:, None, :])[:, None]


def added() -> torch.Tensor:
    return torch.full((SIDE, SIDE), float("-inf")).triu(1)


def added_lowest() -> torch.Tensor:
    return torch.zeros(SIDE, SIDE).masked_fill(~compared(), torch.finfo(torch.float32).min)[None, None]


def shifted() -> torch.Tensor:
    at = torch.arange(SIDE)
    return at[:, None] + 1 >= at[None, :]


def windowed() -> torch.Tensor:
    at = torch.arange(SIDE)
    return compared() & (at[:, None] - at[None, :] < 9)


def slanted() -> torch.Tensor:
    at = torch.arange(SIDE)
    return -(at[:, None] - at[None, :]).abs().float() + added()


def one() -> torch.Tensor:
    return torch.ones(1, 1, dtype=torch.bool)


def one_each() -> torch.Tensor:
    return torch.zeros(2, 1, 1, 1)


def rows_alone() -> torch.Tensor:
    return torch.ones(SIDE, 1, dtype=torch.bool)


def drawn() -> torch.Tensor:
    return compared() & (torch.rand(SIDE, SIDE) < 2)


def attention(mask: Callable[[], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask())

    return call


def operands(*, requires_grad: bool = False, keys: int = SIDE) -> list[torch.Tensor]:
    return [torch.randn(2, 3, size, 16, requires_grad=requires_grad) for size in (SIDE, keys, keys)]


def stated(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any], given: list[torch.Tensor]) -> list[bool]:
    """Whether each call of attention that was compiled says that it is causal; and results are eager's."""
    found: list[bool] = []

    def state(graph: fx.GraphModule) -> None:
        state_causal_masks(graph)
        for node in graph.graph.nodes:
            if "scaled_dot_product" in str(node.target):
                at = [each.name for each in node.target._schema.arguments].index("is_causal")
                found.append(len(node.args) > at and node.args[at] is True)

    monkeypatch.setattr(backend, "state_causal_masks", state)
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="weft", options={"cache": False})
    torch.testing.assert_close(compiled(*given), call(*given))
    return found


@pytest.mark.parametrize("mask", [compared, of_documents, added, added_lowest])
def test_causal_masks_are_not_read(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stated(monkeypatch, attention(mask), operands()) == [True]


@pytest.mark.parametrize("mask", [shifted, windowed, slanted, drawn, one, one_each, rows_alone])
def test_other_masks_are(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stated(monkeypatch, attention(mask), operands()) == [False]


def test_a_mask_of_more_keys_than_rows_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(SIDE)[:, None] >= torch.arange(SIDE + 5)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    assert stated(monkeypatch, call, operands(keys=SIDE + 5)) == [False]


def test_a_mask_that_an_argument_has_a_part_in_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=compared() & (q[0, 0, :, 0] < 9e9)[None, :])

    assert stated(monkeypatch, call, operands()) == [False]


def test_operators_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may read what changes between calls, or fail."""
    state = {"open": False}

    @torch.library.custom_op("weft_tests::mask_of_state", mutates_args=())
    def mask_of_state(side: int) -> torch.Tensor:
        return torch.ones(side, side, dtype=torch.bool).tril(SIDE if state["open"] else 0)

    @mask_of_state.register_fake
    def _(side: int) -> torch.Tensor:
        return torch.empty(side, side, dtype=torch.bool)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of_state(SIDE))

    given = operands()
    assert stated(monkeypatch, call, given) == [False]


def test_a_mask_that_cannot_be_computed_here_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(needed: list[fx.Node]) -> torch.Tensor:
        raise NotImplementedError("no kernel")

    for each in (causal_masks, constant_masks):
        monkeypatch.setattr(each, "computed", fail)
    assert stated(monkeypatch, attention(compared), operands()) == [False]


def test_masks_that_are_too_large_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_masks, "_MOST_BYTES", 40 * SIDE * SIDE)
    spread = [torch.randn(64, 8, SIDE, 16) for _ in range(3)]
    many = [torch.randn(64, 1, SIDE, 16) for _ in range(3)]

    def repeated() -> torch.Tensor:
        return added().expand(64, 8, SIDE, SIDE)

    def each() -> torch.Tensor:
        return compared() & (torch.arange(64)[:, None, None, None] >= 0)

    assert stated(monkeypatch, attention(repeated), spread) == [True], "to repeat it takes no memory"
    assert stated(monkeypatch, attention(each), many) == [False]


def test_sizes_that_are_not_known_are_not_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(q.size(-2))[:, None] >= torch.arange(k.size(-2))[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    torch._dynamo.reset()
    with recording() as records:
        run = torch.compile(call, backend="weft", dynamic=True, options={"cache": False})
        for rows, keys in ((8, 12), (9, 9), (7, 7)):
            given = [torch.randn(2, 3, size, 16) for size in (rows, keys, keys)]
            torch.testing.assert_close(run(*given), call(*given))
    assert len(records) == 1


def test_training(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(requires_grad=True)

    def call(*operands: torch.Tensor) -> torch.Tensor:
        return attention(of_documents)(*attention(of_documents)(*operands).chunk(1), *operands[1:]).square().sum()

    assert stated(monkeypatch, call, given) == [True] * 4  # forward and backward of two layers
    found = torch.autograd.grad(torch.compile(call, backend="weft")(*given), given)
    exact = [each.detach().double().requires_grad_() for each in given]
    for one, other in zip(found, torch.autograd.grad(call(*exact), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
