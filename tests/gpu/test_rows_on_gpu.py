"""Rows on a GPU, held or streamed, against float64, with infinities and NaN; and dropout's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


def rows(count: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(count, columns, device="cuda", dtype=dtype) * 3
    x[1], x[2, 5], x[3, ::3], x[4, 7] = -torch.inf, torch.inf, -torch.inf, torch.nan
    return x


def cross_entropy(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x if x.dtype == torch.float64 else x.float(), labels, reduction="none")


def agree(found: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    there = exact.isfinite()
    assert torch.equal(found.isfinite(), there) and torch.equal(found.isnan(), exact.isnan())
    assert ((found.double() - exact)[there].norm() / exact[there].norm()).item() < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [4096, 32000, 40001, 50264, 128256])
def test_cross_entropy(columns: int, dtype: torch.dtype) -> None:
    x, labels = rows(1200, columns, dtype), torch.randint(0, columns, (1200,), device="cuda")
    agree(compiled(cross_entropy)(x, labels), cross_entropy(x.double(), labels), 2e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [700, 5003, 32768, 33000, 40960, 50257, 65536, 100008, 128256, 131072, 262144])
def test_softmax(columns: int, dtype: torch.dtype) -> None:
    x = rows(1200, columns, dtype)
    agree(
        compiled(lambda x: torch.softmax(x, -1))(x),
        torch.softmax(x.double(), -1),
        4e-7 if dtype.itemsize == 4 else 3e-3,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [4096, 4097, 8192, 16384, 33001, 65536])
def test_layer_norm_with_a_large_mean(columns: int, dtype: torch.dtype) -> None:
    x = (torch.randn(1200, columns, device="cuda") + 20).to(dtype)
    weight = torch.randn(columns, device="cuda").to(dtype)
    found = compiled(lambda x, w: F.layer_norm(x, (columns,), w))(x, weight)
    agree(found, F.layer_norm(x.double(), (columns,), weight.double()), 2e-6 if dtype.itemsize == 4 else 3e-3)


@pytest.mark.parametrize("columns", [32768, 50264, 128256])
def test_gradient_of_softmax(columns: int) -> None:
    x, change = (torch.randn(600, columns, device="cuda").bfloat16() for _ in range(2))
    softmax = compiled(lambda x: torch.softmax(x, -1))
    found, exact = (
        torch.autograd.grad(function(leaf), leaf, grad.to(leaf.dtype))[0]
        for function, leaf, grad in (
            (softmax, x.clone().requires_grad_(), change),
            (lambda x: torch.softmax(x, -1), x.double().requires_grad_(), change),
        )
    )
    agree(found, exact, 1e-2)


@pytest.mark.parametrize("columns", [4096, 50257])
def test_gradient_of_cross_entropy(columns: int) -> None:
    x = torch.randn(1200, columns, device="cuda").bfloat16().requires_grad_()
    labels = torch.randint(0, columns, (1200,), device="cuda")
    labels[3] = -100
    (found,) = torch.autograd.grad(compiled(cross_entropy)(x, labels).sum(), x)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(cross_entropy(wide, labels).sum(), wide)
    agree(found, exact, 3e-3)


@pytest.mark.parametrize("columns", [50264, 128256])
def test_reductions_of_streamed_rows(columns: int) -> None:
    x = rows(1200, columns, torch.bfloat16)
    total, place = compiled(lambda x: (x.float().square().sum(-1), x.argmax(-1)))(x)
    agree(total, x.double().square().sum(-1), 1e-6)
    assert torch.equal(place, x.argmax(-1))


@pytest.mark.parametrize("graphs", [False, True])
def test_dropout_draws_new_numbers_in_every_call_and_the_same_of_a_seed(graphs: bool) -> None:
    x, y = torch.ones(2048, 1024, device="cuda", dtype=torch.bfloat16), torch.zeros(2048, 1024, device="cuda")
    run = compiled(lambda x, y: y + F.dropout(x, 0.25, training=True), cuda_graphs=graphs)
    for _ in range(3):  # until it is captured, if it is
        run(x, y)
    torch.manual_seed(3)
    first = [run(x, y).clone() for _ in range(4)]
    torch.manual_seed(3)
    again = run(x, y)
    assert torch.equal(first[0], again)
    for number, value in enumerate(first):
        assert abs((value != 0).double().mean().item() - 0.75) < 0.005
        assert number == 0 or not torch.equal(value, first[0])
