"""Operators that are taken apart before they are imported: what is left of them is compiled, with its derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


@needs_second_derivatives
def test_rrelu_that_draws_nothing_is_compiled_with_its_derivatives() -> None:
    def leak(x: torch.Tensor) -> torch.Tensor:
        return F.rrelu(x * x - 0.5, 0.1, 0.4).sin()

    x, weight = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found: list[Any] = []
    for call in (torch.compile(leak, backend="weft", options={"strict": True}), leak):
        (first,) = torch.autograd.grad((call(x) * weight).sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sin().sum(), (x, weight))))
    torch.testing.assert_close(*found)


def test_rrelu_in_training_draws_as_eager_and_has_its_gradient() -> None:
    def leak(x: torch.Tensor) -> torch.Tensor:
        return F.rrelu(x.sin(), 0.1, 0.4, training=True)

    x = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    found: list[Any] = []
    for call in (torch.compile(leak, backend="weft", options={"strict": True}), leak):
        torch.manual_seed(3)
        result = call(x)
        found.append((result, *torch.autograd.grad(result.cos().sum(), x)))
    torch.testing.assert_close(*found)


def test_parts_of_complex_numbers_that_are_no_numbers_are_replaced() -> None:
    def replaced(x: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num(x, 1.5, neginf=-3.0)

    x = torch.randn(6, dtype=torch.complex128)
    x.real[0], x.imag[1], x.real[2], x.imag[3] = float("nan"), float("nan"), float("-inf"), float("inf")
    compiled = torch.compile(replaced, backend="weft", fullgraph=True)
    torch.testing.assert_close(compiled(x), replaced(x))
    torch.testing.assert_close(compiled(x.imag), replaced(x.imag))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_that_are_read_are_made_shorter_in_the_weight(norm_type: float, dtype: torch.dtype) -> None:
    def read(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(x, weight, padding_idx=1, max_norm=1.0, norm_type=norm_type) * 2

    x = torch.tensor([[3, 3, 0], [1, 7, 8]])
    start = torch.randn(9, 5).to(dtype) * torch.linspace(0.05, 2, 9)[:, None].to(dtype)
    found: list[Any] = []
    for call in (torch.compile(read, backend="weft", options={"strict": True, "cache": False}), read):
        weight = start.clone().requires_grad_()
        result = call(x, weight)
        (gradient,) = torch.autograd.grad(result.square().sum(), weight)
        found.append((result.detach(), weight.detach(), gradient))
    torch.testing.assert_close(*found)
    kept = [row for row in range(9) if row not in x]
    assert torch.equal(found[0][1][kept], start[kept]), "what nobody reads stays as it is"
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
        torch.compile(read, backend="weft", options={"cache": False})(x + 1, start.clone())
