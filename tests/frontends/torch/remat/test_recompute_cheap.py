"""Keys and values that heads share are kept once for the backward, not as often as they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BATCH, HEADS, GROUPS, LENGTH, WIDTH = 2, 8, 2, 33, 16
REPEATED = (BATCH, HEADS, LENGTH, WIDTH)


def repeated(x: Tensor) -> Tensor:
    """As decoders of transformers repeat them."""
    wide = x[:, :, None].expand(BATCH, GROUPS, HEADS // GROUPS, LENGTH, WIDTH)
    return wide.reshape(REPEATED)


def attention(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def split(w: Tensor, heads: int) -> Tensor:
        return F.linear(x, w).view(BATCH, LENGTH, heads, WIDTH).transpose(1, 2)

    keys = repeated(split(k, GROUPS) * 1.5)
    out = F.scaled_dot_product_attention(split(q, HEADS), keys, repeated(split(v, GROUPS)), is_causal=True)
    return out.square().sum()


def operands() -> list[Tensor]:
    rows = [HEADS * WIDTH, GROUPS * WIDTH, GROUPS * WIDTH]
    x = torch.randn(BATCH, LENGTH, 24)
    return [x, *(torch.randn(n, 24, requires_grad=True) for n in rows)]


def kept(function: Any, given: list[Tensor]) -> tuple[list[tuple[int, ...]], tuple[Tensor, ...]]:
    """The shapes of what a compiled function keeps for its backward, and the gradients."""
    torch._dynamo.reset()
    shapes: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    compiled = torch.compile(function, backend="weft", options={"cache": False})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = compiled(*given)
    return shapes, torch.autograd.grad(loss, given[1:])


def test_repeated_keys_and_values_are_not_kept() -> None:
    given = operands()
    shapes, found = kept(attention, given)
    assert shapes.count(REPEATED) <= 2, "what attention gives, and its rows"
    assert shapes, "something is kept"
    doubled = [each.detach().double().requires_grad_(each.requires_grad) for each in given]
    for one, wanted in zip(found, torch.autograd.grad(attention(*doubled), doubled[1:]), strict=True):
        assert (one.double() - wanted).norm() <= 1e-4 * wanted.norm()


def test_what_the_user_says_is_computed_again_stays_so() -> None:
    given = operands()

    def outer(*given: Tensor) -> Any:
        return checkpoint(attention, *given, use_reentrant=False)

    _, found = kept(outer, given)
    torch.testing.assert_close(found, torch.autograd.grad(attention(*given), given[1:]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_numbers_that_are_broadcast_are_none_of_it(scale: float) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x * torch.full((), scale).expand(x.shape[0], 24).clone() @ w.t()).relu().sum()

    given = [torch.randn(7, 24), torch.randn(5, 24, requires_grad=True)]
    _, found = kept(function, given)
    torch.testing.assert_close(found, torch.autograd.grad(function(*given), given[1:]))


def test_a_wider_copy_is_not_kept() -> None:
    """What a norm of f32 reads of a product in bf16 is made again of the product's result."""

    def normalized(x: Tensor, weight: Tensor, factor: Tensor) -> Tensor:
        wide = F.linear(x.bfloat16(), weight.bfloat16()).float()
        return (F.layer_norm(wide, (WIDTH,)) * factor).sum()

    torch._dynamo.reset()
    given = [torch.randn(LENGTH, 24), *(torch.randn(s, requires_grad=True) for s in ((WIDTH, 24), (WIDTH,)))]
    kept_types: list[torch.dtype] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.shape == (LENGTH, WIDTH):
            kept_types.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = torch.compile(normalized, backend="weft", options={"cache": False})(*given)
    assert kept_types == [torch.bfloat16]
    for one, wanted in zip(
        torch.autograd.grad(loss, given[1:]), torch.autograd.grad(normalized(*given), given[1:]), strict=True
    ):
        assert (one - wanted).norm() <= 1e-2 * wanted.norm()
