"""The backward of attention on a GPU, in kernels of Weft's own, against float64 and torch's library."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, ...]:
    """In float64, written out."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ keys.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], device="cuda").tril().bool(), -math.inf)
    return torch.autograd.grad(torch.softmax(scores, -1) @ values, (q, k, v), grad.double())


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "shared", "rows", "keys", "width", "dtype"),
    [
        (4, 4, 1024, 1024, 128, torch.bfloat16),
        (8, 2, 700, 700, 64, torch.bfloat16),
        (2, 2, 513, 1000, 128, torch.float16),
        (2, 1, 600, 77, 96, torch.bfloat16),
        (3, 3, 129, 257, 16, torch.bfloat16),
    ],
)
def test_gradients_are_as_near_as_the_librarys(
    heads: int, shared: int, rows: int, keys: int, width: int, dtype: torch.dtype, causal: bool
) -> None:
    torch.manual_seed(1)

    def drawn(count: int, length: int) -> torch.Tensor:
        return torch.randn(2, length, count, width, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != shared)

    inputs = drawn(heads, rows), drawn(shared, keys), drawn(shared, keys)
    grad = torch.randn_like(inputs[0])
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="weft", options={"strict": True, "cache": False})
    found, again = (torch.autograd.grad(compiled(*inputs), inputs, grad) for _ in range(2))
    library = torch.autograd.grad(attend(*inputs), inputs, grad)
    for own, repeated, theirs, exact in zip(found, again, library, gradients(*inputs, grad, causal), strict=True):
        assert torch.equal(own, repeated)
        assert error(own, exact) <= 1.5 * error(theirs, exact)
