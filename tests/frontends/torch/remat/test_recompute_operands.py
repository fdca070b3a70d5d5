"""Operands that are cheap beside the products that read them are not kept for the backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.backends.target import CostFacts
from weft.frontends.torch.remat import memory_budget

ROWS, DEPTH, WIDTH = 1024, 320, 256
SLOW_PRODUCTS = CostFacts(bandwidth=4.8e12, matmul_flops=9e14, vector_flops=1e13)
FAST_PRODUCTS = CostFacts(bandwidth=4.8e12, matmul_flops=9e14, vector_flops=9e14)


def gated(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = (x @ up).chunk(2, -1)
    return (F.silu(gate) * value @ down).square().sum()


def shifted(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Nothing but the product reads of the sum, or of what it adds, in the backward: the sum is kept."""
    gate, value = (x @ up).chunk(2, -1)
    return ((gate + value) @ down).square().sum()


def operands() -> list[Tensor]:
    shapes = (ROWS, WIDTH), (WIDTH, 2 * DEPTH), (DEPTH, WIDTH)
    return [torch.randn(shape) / shape[0] ** 0.5 for shape in shapes]


def kept(function: Any, costs: CostFacts, monkeypatch: pytest.MonkeyPatch) -> tuple[int, tuple[Tensor, ...]]:
    """How many results as large as the second product's operand a compiled function keeps, and its gradients."""
    monkeypatch.setattr(memory_budget, "_costs_on_gpu", lambda *_: costs)
    torch._dynamo.reset()
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if {*tensor.shape} == {ROWS, DEPTH}:  # a product may read it transposed
            found[tensor.data_ptr()] = 1
        return tensor

    given = [each.requires_grad_() for each in operands()]
    compiled = torch.compile(function, backend="weft", options={"cache": False})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = compiled(*given)
    gradients = torch.autograd.grad(loss, given)
    doubled = [each.detach().double().requires_grad_() for each in given]
    for one, wanted in zip(gradients, torch.autograd.grad(function(*doubled), doubled), strict=True):
        assert (one.double() - wanted).norm() <= 1e-4 * wanted.norm()
    return len(found), gradients


def test_an_operand_of_a_long_product_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    less, _ = kept(gated, SLOW_PRODUCTS, monkeypatch)
    more, _ = kept(gated, FAST_PRODUCTS, monkeypatch)
    assert (less, more) == (2, 3), "gate and value; and what they give"


def test_nothing_is_kept_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = kept(shifted, SLOW_PRODUCTS, monkeypatch)
    assert found == 1


def test_processors_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = kept(gated, CostFacts(), monkeypatch)
    assert found == 3
