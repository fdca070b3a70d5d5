"""Products of few rows on a GPU: TMA brings weights, before the kernel ahead has ended or behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from weft.testing.conformance.model_check import compile_with
from weft.testing.gpu.llama import Llama, LlamaShape
from weft.testing.gpu.models import made_on

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
captures = pytest.mark.skipif(
    os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1", reason="no graph is captured where torch keeps no memory"
)

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


@pytest.fixture
def no_attention_of_cudnn() -> Iterator[None]:
    """Its attention over a mask, called twice with the same operands, gives other bits now and then, in eager too."""
    chosen = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(chosen)


@pytest.mark.usefixtures("no_attention_of_cudnn")
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("graphs", [pytest.param(True, marks=captures), False])
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m", [17, 32, 50, 64])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (14336, 4096), (2056, 14336), (16392, 1032)])
def test_rows_of_one_tile(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Weights come in tiles, also before the kernel ahead has ended, and K may be cut."""
    x, w = operands(m, n, k, dtype)
    c, r = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((n,), (m, n)))
    compiled = compile_with("weft", cache=False, cuda_graphs=False)(
        lambda x, w, c, r: F.silu(F.linear(x * 2, w, c)) + r
    )
    exact = F.silu(2 * x.double() @ w.double().T + c.double()) + r.double()
    results = [compiled(x, w, c, r) for _ in range(4)]
    assert all(error(result, exact) < 4e-3 for result in results)
    assert all(torch.equal(result, results[0]) for result in results)


@captures
def test_programs_of_a_graph_that_write_what_the_next_one_reads() -> None:
    """Captured programs start early behind each other: not where one of them, or torch, writes the other's weights."""
    x, v = operands(1, 4096, 4096, torch.bfloat16)
    _, w = operands(1, 4096, 4096, torch.bfloat16)
    small, tall = operands(1, 1 << 20, 128, torch.bfloat16)
    y, _ = operands(1, 1024, 1024, torch.bfloat16)
    compiled = torch.compile(F.linear, backend="weft", dynamic=False, options={"cache": False})
    old, new = w.clone(), v.flip(0).contiguous()

    def calls() -> list[torch.Tensor]:
        first = compiled(x, v)
        second = compiled(first, w)
        w.copy_(new)
        third = compiled(second, w)
        made = compiled(small, tall)
        return [first, second, third, made, compiled(y, made.view(1024, 1024))]

    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second, third, made, last = calls()
    for _ in range(8):
        w.copy_(old)
        small.copy_(torch.randn_like(small))
        graph.replay()
        for result, rows, weights in (
            (first, x, v),
            (second, first, old),
            (third, second, new),
            (last, y, made.view(1024, 1024)),
        ):
            assert error(result, rows.double() @ weights.double().T) < 4e-3
