"""Products that several ops read are rounded for all of them, as they are in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ..emulated_graphs import emulated


@pytest.mark.parametrize("columns", [1, 64])
def test_rows_of_equal_products_have_no_variance(columns: int) -> None:
    """Of a product that is rounded in the mean alone, what is left would be divided by the root of epsilon."""
    x = torch.linspace(1, 7, 5)[:, None].repeat(1, columns)
    found = emulated(lambda x: F.layer_norm(x * 0.1, x.shape[-1:]))(x)
    assert torch.equal(found, torch.zeros_like(x))
