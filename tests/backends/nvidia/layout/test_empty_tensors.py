"""Tensors without elements, whose strides torch chooses as it likes: their kernels are compiled, and write nothing."""

from __future__ import annotations

import pytest
import torch

from ..emulated_graphs import emulated


def casts_and_maps(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.to(torch.int64), (x * 2).sin(), torch.zeros_like(x) + x.sum(), x.softmax(1)


@pytest.mark.parametrize("shape", [(2, 1, 0), (0, 3, 4), (3, 0, 2)])
def test_expanded_tensors_without_elements(shape: tuple[int, int, int]) -> None:
    x = torch.randn([1 if size > 1 else size for size in shape]).expand(shape)
    with torch.no_grad():
        results = emulated(casts_and_maps)(x), casts_and_maps(x)
    for found, expected in zip(*results, strict=True):
        assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
