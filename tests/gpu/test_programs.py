"""Whole programs on a GPU: model families, training, and what the benchmark measures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from weft.testing.bench.benchmark import Limits
from weft.testing.conformance.model_check import check_model, compile_with
from weft.testing.conformance.training import check_training
from weft.testing.devices import device_named
from weft.testing.gpu.case import GpuCase, Place, run_gpu_case
from weft.testing.gpu.suites import SUITES
from weft.testing.models import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

BRIEF = Limits(rounds=2, least=2, seconds=0.1, sample_seconds=0.0)
CASES = [case for suite in ("memory", "gemv", "gemm", "attention") for case in SUITES[suite]()]


@pytest.fixture(autouse=True)
def whole_products() -> Iterator[None]:
    """Results are held against float64: eager itself must not shorten its operands."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # torch's own tests forbid to set it
        yield


@pytest.mark.parametrize("name", list(SMALL))
def test_a_family_computes_what_eager_does(name: str) -> None:
    report = check_model(SMALL[name], compile_with("weft", cache=False), device="cuda")
    assert report.ok, str(report)


def test_training_follows_eager() -> None:
    report = check_training(SMALL["gpt2"], compile_with("weft", cache=False), device="cuda")
    assert report.ok, str(report)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_measured_is_right(case: GpuCase) -> None:
    place = Place(device_named("cuda"), 64)
    row = run_gpu_case(case, place, BRIEF, thorough=False)
    assert row["ok"], (row["failures"], row["wrong"], row["uncompiled"])


def decoding(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Layers whose caches lie in one tensor."""
    x = new
    for layer in cache.unbind(0):
        layer.index_copy_(2, position, x)
        x = x + F.scaled_dot_product_attention(x, layer, layer)
    return x


@torch.no_grad()
def test_rows_of_caches_are_written_where_they_lie() -> None:
    cache = torch.zeros(4, 2, 8, 64, 128, device="cuda", dtype=torch.bfloat16)
    own = cache.clone()
    compiled = torch.compile(decoding, backend="weft", options={"cache": False})
    for number in range(6):  # plain, captured, replayed
        new = torch.randn(2, 8, 1, 128, device="cuda", dtype=torch.bfloat16)
        position = torch.tensor([number], device="cuda")
        expected, found = decoding(cache, new, position), compiled(own, new, position)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(own, cache, rtol=2e-2, atol=2e-2)
        assert not own[:, :, :, number + 1 :].any()


@torch.no_grad()
def test_statistics_of_batches_follow_eager() -> None:
    eager = torch.nn.Sequential(*(torch.nn.BatchNorm2d(16) for _ in range(8))).cuda()
    own = torch.nn.Sequential(*(torch.nn.BatchNorm2d(16) for _ in range(8))).cuda()
    compiled = torch.compile(own, backend="weft", options={"cache": False})
    for _ in range(5):
        x = torch.randn(4, 16, 8, 8, device="cuda")
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-4)
    for one, other in zip(own.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_of_many_tensors_follows_eager(dtype: torch.dtype) -> None:
    """Few and many elements, whole blocks of them and not, in one kernel."""
    sizes = [(4096, 512), (1 << 20,), (1000,), (7,), (256,), (64, 3, 7, 7), (50257, 16), (4096,), (4096,), ()]
    values = [torch.randn(size, device="cuda", dtype=dtype) for size in sizes]
    own, eager = ([torch.nn.Parameter(value.clone()) for value in values] for _ in range(2))
    optimizers = [torch.optim.AdamW(each, lr=1e-2, foreach=True, capturable=True) for each in (own, eager)]
    step = torch.compile(optimizers[0].step, backend="weft", options={"cache": False})
    for _ in range(3):
        for one, other in zip(own, eager, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        step()
        optimizers[1].step()
    for one, other in zip(own, eager, strict=True):
        near = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(one, other, rtol=near, atol=near)


@torch.no_grad()
def test_memory_that_runs_out_is_torchs_error_and_the_next_call_works() -> None:
    compiled = torch.compile(lambda x: (x * 2).softmax(-1), backend="weft", options={"cache": False})
    x = torch.randn(4096, 4096, device="cuda")
    expected = (x * 2).softmax(-1)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-9)
    try:
        for _ in range(2):
            with pytest.raises(torch.cuda.OutOfMemoryError):
                results = [compiled(x) for _ in range(4000)]  # the blocks that torch has already are soon used up
                del results
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(compiled(x), expected)
