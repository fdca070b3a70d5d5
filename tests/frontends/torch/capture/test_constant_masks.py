"""Masks of attention that hide nothing are not handed to it, whoever makes them and whatever their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from weft.frontends.torch import backend
from weft.frontends.torch.capture.constant_masks import without_constant_masks

SIDE = 19
Mask = Callable[[Tensor], Tensor]


def full(_: Tensor) -> Tensor:
    return torch.ones(2, 1, SIDE, SIDE, dtype=torch.bool)


def compared(_: Tensor) -> Tensor:
    """As encoders of transformers make it where they cannot look at a mask of the user's."""
    at = torch.arange(SIDE)
    return (at[:, None] >= 0).expand(2, 1, SIDE, SIDE) & (at >= 0)


def added(_: Tensor) -> Tensor:
    return torch.zeros(SIDE, SIDE)


def causal(_: Tensor) -> Tensor:
    at = torch.arange(SIDE)
    return at[:, None] >= at[None, :]


def written(_: Tensor) -> Tensor:
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    mask[:, 3] = False
    return mask


def written_through_a_view(_: Tensor) -> Tensor:
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    mask[:, 3].fill_(False)
    return mask


def drawn(_: Tensor) -> Tensor:
    return torch.rand(SIDE, SIDE) < 2


def windowed(_: Tensor) -> Tensor:
    at = torch.arange(SIDE)
    return (at[:, None] - at[None, :]).abs() < 5


def of_an_argument(q: Tensor) -> Tensor:
    return torch.ones(SIDE, SIDE, dtype=torch.bool) & (q[0, 0, :, 0] < 9e9)


def masks_left(mask: Mask, monkeypatch: pytest.MonkeyPatch, *, keys: int = SIDE) -> list[tuple[bool, bool]]:
    """Whether attention still has a mask, and whether it is said to be causal; results and gradients are eager's."""
    found: list[tuple[bool, bool]] = []

    def noted(module: fx.GraphModule) -> fx.GraphModule:
        made = without_constant_masks(module)
        for node in made.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
            found.append((node.kwargs.get("attn_mask") is not None, bool(node.kwargs.get("is_causal"))))
        return made

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = mask(q)[..., :keys]
        return sum(F.scaled_dot_product_attention(q * n, k, v, attn_mask=seen) for n in (1, 2))  # type: ignore[return-value]

    monkeypatch.setattr(backend, "without_constant_masks", noted)
    torch._dynamo.reset()
    given = [torch.randn(2, 3, size, 8, requires_grad=True) for size in (SIDE, keys, keys)]
    results: list[Any] = []
    for each in (torch.compile(call, backend="weft", options={"cache": False}), call):
        out = each(*given)
        results.append((out, *torch.autograd.grad(out.square().sum(), given)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    return found


@pytest.mark.parametrize("mask", [full, compared, added])
def test_masks_that_hide_nothing_are_left_out(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert masks_left(mask, monkeypatch) == [(False, False)] * 2


def test_masks_that_hide_nothing_of_fewer_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert masks_left(full, monkeypatch, keys=SIDE - 2) == [(False, False)] * 2


def test_causal_masks_are_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert masks_left(causal, monkeypatch) == [(False, True)] * 2


@pytest.mark.parametrize("mask", [written, written_through_a_view, drawn, windowed, of_an_argument])
def test_other_masks_stay(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert masks_left(mask, monkeypatch) == [(True, False)] * 2


class Keeping(torch.nn.Module):
    """Keys are kept, calls counted and norms updated by calls whose results nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("keys", torch.zeros(1, 2, 6, 8))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(8))

    def forward(self, q: Tensor, at: Tensor) -> Tensor:
        self.keys.index_copy_(2, at, q)
        self.count.add_(1)
        torch.add(self.total, self.norm(q[0, 0]).detach().sum(0), out=self.total)
        return F.scaled_dot_product_attention(q, self.keys, self.keys, torch.ones(3, 6, dtype=torch.bool))


def test_what_is_written_beside_a_mask_stays() -> None:
    eager, other = Keeping(), Keeping()
    call = torch.compile(other, backend="weft", options={"fallback": "error", "cache": False})
    for at in ([0, 1, 2], [3, 5, 4]):
        q = torch.randn(1, 2, 3, 8)
        torch.testing.assert_close(call(q, torch.tensor(at)), eager(q, torch.tensor(at)))
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


@pytest.mark.parametrize("sizes", [(2, 1, 5, 5), (3, 5, 5)])
def test_a_mask_for_more_than_there_is_stays(sizes: tuple[int, ...]) -> None:
    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, torch.ones(sizes, dtype=torch.bool))

    seen: list[fx.GraphModule] = []

    def note(module: fx.GraphModule, _: Any) -> Any:
        seen.append(without_constant_masks(module))
        return module

    q = torch.randn(1, 4, 5, 8)
    for call in (attention, torch.compile(attention, backend=note)):
        with pytest.raises(RuntimeError):
            call(q)
    for module in seen:  # where Dynamo itself does not say so
        (node,) = module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        assert len(node.args) == 4 and node.args[3] is not None
