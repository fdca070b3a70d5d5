"""Kernels of Triton's language on a GPU: what they give, how quick launches are, and what is said of mistakes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import DeviceAssertError, KernelTypeError
from weft.frontends.triton.runtime.device_compiled import DeviceKernel, compile_device_kernel, device_target

sys.path.append(str(Path(__file__).parents[1] / "frontends" / "triton"))
import test_random_programs as programs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


class Program(programs.Program):
    """Programs without products of matrices."""

    def dot(self, depth: int) -> None:
        return


@pytest.mark.parametrize("chunk", range(20))
def test_random_programs_give_what_numpy_gives(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "Program", Program)
    for seed in range(10 * chunk, 10 * (chunk + 1)):
        floats, integers, expected = programs.interpreted(seed, 12)
        code = compile_device_kernel(
            lambda b, handles, seed=seed: Program(b, seed, handles).run(12),
            programs.ARGUMENTS,
            f"random{seed}",
            device_target(0),
            (1, 2, 4, 8)[seed % 4],
        )
        result = np.full(programs.SIZE, 7, np.float32)
        arrays = (floats, integers, result, np.zeros(programs.SIZE, np.float32))
        tensors = [torch.from_numpy(array).cuda() for array in arrays]
        words = [*(tensor.data_ptr() for tensor in tensors), programs.SIZE]
        DeviceKernel(code, 0, None).launch((programs.PROGRAMS, 1, 1), words)
        found = tensors[2].cpu().numpy()
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}")


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
def test_adding(dtype: torch.dtype, warps: int) -> None:
    x, y = (torch.randint(-20, 20, (5000,), device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(x)
    add[(5,)](x, y, out, 5000, BLOCK=1024, num_warps=warps)
    assert torch.equal(out, x + y)


def test_a_kernel_runs_on_the_current_stream() -> None:
    x, out = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.mul_(2)
        add[(1024,)](x, x, out, 1 << 20, BLOCK=1024)
    stream.synchronize()
    assert bool((out == 4).all())


@triton.jit
def copy_rows(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def test_a_copy_of_many_elements() -> None:
    x = torch.randn((1 << 26) + 5, device="cuda")
    out = torch.full_like(x, torch.nan)
    copy_rows[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), BLOCK=4096, num_warps=8)
    assert torch.equal(out, x)


@triton.jit
def checked(x, N: tl.constexpr):
    tl.device_assert(tl.load(x + tl.arange(0, N)) < 5, "too large")


def test_a_condition_that_does_not_hold_is_an_error_and_the_next_launch_works() -> None:
    x = torch.zeros(64, device="cuda")
    x[33] = 7
    with pytest.raises(DeviceAssertError, match="too large"):
        checked[(1,)](x, 64, debug=True)
    x[33] = 0
    checked[(1,)](x, 64, debug=True)


@triton.jit
def printed(x, N: tl.constexpr):
    tl.device_print("value", tl.load(x + tl.arange(0, N)))


def test_values_are_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    printed[(1,)](torch.arange(4, device="cuda"), 4)
    torch.cuda.synchronize()
    lines = [line for line in capfd.readouterr().out.splitlines() if "value" in line]
    assert sorted(lines) == [f"pid (0, 0, 0) idx ({i}) value: {i}" for i in range(4)]


def test_tensors_on_two_devices_are_refused() -> None:
    x = torch.zeros(1024, device="cuda")
    with pytest.raises(KernelTypeError, match="different devices"):
        add[(1,)](x, x.cpu(), x, 1024, BLOCK=1024)
