"""What torch's arrays do for programs: products."""

from __future__ import annotations

import pytest
import torch

from weft.frontends.torch.execution.arrays import TorchArrays
from weft.frontends.torch.execution.reference import to_array, to_tensor


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("accumulates", [False, True])
def test_products_are_exact_under_autocast(batch: tuple[int, ...], accumulates: bool) -> None:
    torch.manual_seed(0)
    a, b, out = torch.randn(*batch, 8, 16), torch.randn(*batch, 16, 4), torch.randn(*batch, 8, 4)
    exact = a.double() @ b.double() + (out.double() if accumulates else 0)
    with torch.autocast("cpu", torch.bfloat16):
        TorchArrays(torch.device("cpu")).multiply(a, b, out, accumulates=accumulates)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_operands_that_all_batches_share_are_added_to_each() -> None:
    a, b, out = torch.ones(8, 16).expand(2, 3, 8, 16), torch.ones(1, 1, 16, 4), torch.zeros(2, 3, 8, 4)
    TorchArrays(torch.device("cpu")).multiply(a, b, out, accumulates=True)
    assert torch.equal(out, torch.full_like(out, 16.0))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.bool])
def test_tensors_come_back_from_numpy(dtype: torch.dtype) -> None:
    """Of the types of ml_dtypes, NumPy takes one for a float of its own, and torch knows none."""
    x = torch.tensor([0.0, 1.5, -2.0]).to(dtype)
    arrays = TorchArrays(torch.device("cpu"))
    for found in (arrays.from_host(arrays.to_host(x)), to_tensor(to_array(x))):
        assert found.dtype == dtype
        assert found.tolist() == x.tolist()
