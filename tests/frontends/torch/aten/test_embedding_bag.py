"""Bags of embeddings, whose sparse gradients are torch's own work on what Weft's forward keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

INDICES = torch.tensor([1, 0, 2, 0, 4, 1])
OFFSETS = torch.tensor([0, 2, 2, 5])


def compiled_gradients(
    weight: Tensor, mode: str, padding: int | None, weights: Tensor | None, *, backend: str
) -> tuple[Tensor, Tensor | None]:
    def function(table: Tensor, factors: Tensor | None) -> Tensor:
        return F.embedding_bag(
            INDICES,
            table,
            OFFSETS,
            mode=mode,
            sparse=True,
            per_sample_weights=factors,
            padding_idx=padding,
        )

    torch.compiler.reset()
    table = weight.clone().requires_grad_()
    factors = None if weights is None else weights.clone().requires_grad_()
    run = torch.compile(function, backend="weft", options={"cache": False}) if backend == "weft" else function
    out = run(table, factors)
    (out * torch.arange(1.0, 5.0, dtype=out.dtype)[:, None]).sum().backward()
    assert table.grad is not None
    assert table.grad.is_sparse
    return table.grad.to_dense(), None if factors is None else factors.grad


# Tracing weighted sums of f32 without padding fails in torch, with any backend.
CASES = [
    ("sum", False, torch.float64, None),
    ("sum", False, torch.bfloat16, 0),
    ("sum", True, torch.float32, 0),
    ("sum", True, torch.bfloat16, None),
    ("mean", False, torch.float32, None),
    ("mean", False, torch.float64, 0),
]


@pytest.mark.parametrize(("mode", "weighted", "dtype", "padding"), CASES)
def test_sparse_gradients(mode: str, weighted: bool, dtype: torch.dtype, padding: int | None) -> None:
    weight = torch.randn(5, 3, dtype=dtype)
    weights = torch.rand(len(INDICES), dtype=dtype) if weighted else None
    expected = compiled_gradients(weight, mode, padding, weights, backend="eager")
    actual = compiled_gradients(weight, mode, padding, weights, backend="weft")
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("mode", "padding"), [(0, -1), (1, 0), (2, 0)])
def test_what_is_kept_for_a_backward_of_torch(mode: int, padding: int) -> None:
    def function(weight: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.aten._embedding_bag(weight, INDICES, OFFSETS, False, mode, False, None, False, padding)

    torch.compiler.reset()
    weight = torch.randn(5, 3, dtype=torch.float64)
    out, bag, sizes, maxima = torch.compile(function, backend="weft", options={"cache": False})(weight)
    expected = function(weight)
    torch.testing.assert_close((out, bag), expected[:2])
    if mode:
        torch.testing.assert_close(sizes, expected[2])
    if mode == 2:
        filled = expected[2] > 0
        torch.testing.assert_close(maxima[filled], expected[3][filled])
