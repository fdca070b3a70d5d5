"""Products of few rows on a GPU: the copy engine brings weights, before the kernel ahead has ended or behind it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from weft.testing.gpu.llama import Llama, LlamaShape
from weft.testing.gpu.models import made_on
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


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("graphs", [True, False])
def test_a_token(batch: int, graphs: bool) -> None:
    """Norms behind products, gates in one kernel, rotations with rows of caches, and kernels that come early."""
    shape = LlamaShape(layers=3, width=2048, heads=16, kv_heads=4, inner=4096, vocabulary=4096, room=256)
    with torch.no_grad():
        with made_on("cuda"):
            own, theirs = Llama(shape, batch).eval(), Llama(shape, batch).eval()
        for name, buffer in own.named_buffers():
            if name.endswith(("keys", "values")):
                buffer.normal_()
        theirs.load_state_dict(own.state_dict())
        exact = Llama(shape, batch).to("cuda").eval()
        exact.load_state_dict(own.state_dict())
        ids, position = torch.randint(4096, (batch, 1), device="cuda"), torch.tensor([100], device="cuda")
        compiled = compile_with("weft", cache=False, cuda_graphs=graphs)(own)
        eager, wanted = theirs(ids, position), exact.float()(ids, position).double()
        results = [compiled(ids, position).clone() for _ in range(6)]
        assert all(torch.equal(result, results[0]) for result in results)
        assert error(results[0], wanted) < 1.5 * error(eager, wanted)
        for mine, other in zip(own.buffers(), theirs.buffers(), strict=True):
            assert torch.allclose(mine, other, rtol=0.05, atol=0.05)
