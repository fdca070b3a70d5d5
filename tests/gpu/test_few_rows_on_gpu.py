"""Products of few rows on a GPU: the copy engine brings weights, before the kernel ahead has ended or behind it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from weft.testing.model_check import compile_with

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SHAPES = [(4096, 4096), (1001, 2048), (14336, 4096), (2050, 14336), (4104, 1000)]
"""The last has no whole pieces: threads read it."""


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(m, k, device="cuda").to(dtype)
    return x, (torch.randn(n, k, device="cuda") * k**-0.5).to(dtype)


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m", [1, 3, 4, 8, 9, 16])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_results(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, w = operands(m, n, k, dtype)
    compiled = compile_with("weft", cache=False, cuda_graphs=False)(F.linear)
    exact = x.double() @ w.double().T
    # A slot that is overwritten while it is read shows in some calls, where consumers are slower than the memory.
    results = [compiled(x, w) for _ in range(8)]
    assert all(error(result, exact) < 4e-3 for result in results)
    assert all(torch.equal(result, results[0]) for result in results)


def test_weights_that_were_just_written_are_read_as_they_are() -> None:
    """A kernel that starts early must not read what the one ahead still writes."""
    x, v = operands(1, 4096, 4096, torch.bfloat16)
    _, w = operands(1, 4096, 4096, torch.bfloat16)
    compiled = compile_with("weft", cache=False)(lambda x, v, w: F.linear(F.linear(x, v), w))
    for turn in range(8):
        v.copy_(torch.randn_like(v) / 64)
        w.fill_(0.25 * turn)
        result = compiled(x, v, w)
        exact = (x.double() @ v.double().T).to(torch.bfloat16).double() @ w.double().T
        assert torch.allclose(result.double(), exact, rtol=2e-2, atol=2e-2), turn
