"""What a norm makes is computed again of what it reads, and not kept beside that, where gradients read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHAPE = (4, 16, 6, 10)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(SHAPE[1:]),
    "rms": lambda: nn.RMSNorm(SHAPE[-1]),
    "group": lambda: nn.GroupNorm(4, SHAPE[1]),
    "group_without_parameters": lambda: nn.GroupNorm(4, SHAPE[1], affine=False),
    "batch": lambda: nn.BatchNorm2d(SHAPE[1]),
}


class Normalized(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(x))


def step(function: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> tuple[set[int], list[Tensor]]:
    """The large tensors that are kept for the backward, by where they lie, and the gradients."""
    kept: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.numel() == x.numel():
            kept.add(tensor.data_ptr())
        return tensor

    given = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = (function(given) * torch.linspace(-1, 1, SHAPE[-1], dtype=x.dtype)).sum()
    return kept, list(torch.autograd.grad(loss, (given, *model.parameters())))


@pytest.mark.parametrize("norm", NORMS)
def test_a_norms_result_is_not_kept(norm: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Normalized(NORMS[norm]()), torch.randn(SHAPE)
    kept, found = step(torch.compile(model, backend="weft", options={"cache": False}), model, x)
    assert len(kept) == 1, "what is normalized, and nothing else of its size"
    model = model.double()
    for ours, theirs in zip(found, step(model, model, x.double())[1], strict=True):
        assert (ours.double() - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_norms_of_symbolic_sizes_are_right_where_torch_runs_their_graph(norm: str) -> None:
    made = {"group": lambda: nn.GroupNorm(2, 4), "batch": lambda: nn.BatchNorm2d(4)}[norm]()
    model = nn.Sequential(made, nn.SiLU())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="weft", dynamic=True, options={"cache": False})
    for rows in (3, 5):
        x = torch.randn(rows, 4, 6, 6, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
        (wanted,) = torch.autograd.grad(model(x).square().sum(), x)
        torch.testing.assert_close(found, wanted)


def test_a_norm_of_turned_rows_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.SiLU())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    x = torch.randn(8, 6, requires_grad=True)
    (found,) = torch.autograd.grad(compiled(x.t()).view(48).square().sum(), x)
    (wanted,) = torch.autograd.grad(model(x.t()).reshape(48).square().sum(), x)
    torch.testing.assert_close(found, wanted)
