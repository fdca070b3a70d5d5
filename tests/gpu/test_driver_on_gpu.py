"""The driver for real: code is compiled, loaded, kept and launched, and what goes wrong is said."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from weft.backends.nvidia.code import DeviceCode, Launch
from weft.backends.nvidia.driver.libcuda import device_facts, driver
from weft.errors import CompilationError, UnsupportedDeviceError
from weft.frontends.torch.execution.cuda_executor import CudaExecutor, load_program
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.lower.steps import Plan
from weft.runtime.cache import DiskCache
from weft.runtime.cuda import cubins

from .handwritten import CODE, HOPPER_CODE, PTX, SIZE, chain, kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


def executor(plan: Plan, code: DeviceCode = CODE, cache: DiskCache | None = None) -> CudaExecutor:
    return CudaExecutor(load_program(plan, code, cache=cache), OpaqueRuntime({}), cuda_graphs=False)


def test_facts_are_those_that_torch_knows() -> None:
    facts, known = device_facts(0), torch.cuda.get_device_properties(0)
    assert facts.capability == torch.cuda.get_device_capability(0)
    assert facts.multiprocessors == known.multi_processor_count
    assert facts.name == known.name and facts.memory_bytes >= known.total_memory
    assert facts.shared_per_block == known.shared_memory_per_block_optin


def test_kernels_run_in_order_on_torchs_memory() -> None:
    run = executor(chain(kernel("scale", 0, 2), kernel("scale", 2, 3), kernel("scale", 3, 1)))
    x = torch.randn(SIZE, device="cuda")
    (y,) = run([x], {})
    assert torch.equal(y, x * 8)


def test_kernels_that_loop_fill_the_device() -> None:
    run = executor(chain(kernel("looping", 0, 1, 10**6)))
    function = run.executable.functions["looping"]
    assert function.resident >= device_facts(0).multiprocessors and function.registers > 0
    x = torch.randn(SIZE, device="cuda")
    assert torch.equal(run([x], {})[0], x * 2)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs clusters"
)
def test_clusters_and_early_starts() -> None:
    through = [0, 2, 3, 2, 3, 2, 3, 2, 3, 2, 1]
    run = executor(chain(*(kernel("early", *pair) for pair in pairwise(through))), HOPPER_CODE)
    x = torch.randn(SIZE, device="cuda")
    for _ in range(20):
        assert torch.equal(run([x], {})[0], x * 1024)
    ranked = executor(chain(kernel("rank", 0, 1, SIZE // 4)), HOPPER_CODE)
    (ranks,) = ranked([x], {})
    assert torch.equal(ranks, (torch.arange(SIZE, device="cuda") % 4).float())


def test_work_is_on_the_current_stream() -> None:
    run = executor(chain(kernel("scale", 0, 1)))
    side = torch.cuda.Stream()
    x = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3)
        (y,) = run([x], {})
    side.synchronize()
    assert torch.equal(y, torch.full_like(y, 6))


def test_inputs_that_are_not_aligned_are_copied() -> None:
    run = executor(chain(kernel("scale", 0, 1)))
    x = torch.randn(SIZE + 1, device="cuda")[1:]
    assert torch.equal(run([x], {})[0], x * 2)
    assert torch.equal(run([torch.ones(SIZE)], {})[0].cpu(), torch.full((SIZE,), 2.0))


def test_cubins_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubins, "_resident", {})  # another test may have loaded the same code
    cache = DiskCache(tmp_path / "cache")
    first = executor(chain(kernel("scale", 0, 1)), cache=cache)
    (entry,) = cache.entries()
    assert entry.key == cubins.cubin_key(driver(), device_facts(0), PTX)
    monkeypatch.setattr(cubins, "_resident", {})
    monkeypatch.setattr(cubins, "ptx_to_cubin", lambda *arguments: pytest.fail("it was compiled again"))
    x = torch.randn(SIZE, device="cuda")
    assert torch.equal(executor(chain(kernel("scale", 0, 1)), cache=cache)([x], {})[0], first([x], {})[0])


def test_a_cubin_that_is_damaged_is_compiled_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(cubins.cubin_key(driver(), device_facts(0), PTX), {}, {"cubin": b"nonsense"})
    x = torch.randn(SIZE, device="cuda")
    assert torch.equal(executor(chain(kernel("scale", 0, 1)), cache=cache)([x], {})[0], x * 2)


def test_ptx_that_is_wrong_is_reported_with_its_line() -> None:
    wrong = DeviceCode("sm_80", {"scale": PTX.replace("add.f32", "addd.f32")}, {"scale": Launch(128, 0)})
    with pytest.raises(CompilationError, match="addd"):
        executor(chain(kernel("scale", 0, 1)), wrong)


def test_code_for_another_gpu_is_refused() -> None:
    with pytest.raises(UnsupportedDeviceError, match="sm_120a"):
        executor(chain(kernel("scale", 0, 1)), DeviceCode("sm_120a", CODE.modules, CODE.launches))


def test_memory_that_runs_out_is_torchs_error_and_the_next_call_works() -> None:
    run = executor(chain(kernel("scale", 0, 1)))
    x = torch.randn(SIZE, device="cuda")
    run([x], {})
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction(1e-9)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            results = [run([x], {})[0] for _ in range(10_000)]  # the blocks that torch has already are soon used up
            del results
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    x = torch.randn(SIZE, device="cuda")
    assert torch.equal(run([x], {})[0], x * 2)
    assert torch.cuda.memory_allocated() <= held + (4 << 20)


FAULT = """
import time
import torch
from weft.errors import KernelFaultError
from weft.frontends.torch.execution.cuda_executor import CudaExecutor, load_program
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from tests.gpu.handwritten import CODE, SIZE, chain, kernel
run = CudaExecutor(load_program(chain(kernel("wild", 0, 1)), CODE), OpaqueRuntime({}), cuda_graphs=False)
x = torch.zeros(SIZE, device="cuda")
try:
    end = time.monotonic() + 20
    while time.monotonic() < end:  # the GPU may be busy with others' work
        run([x], {})
        torch.cuda._sleep(1000)
except KernelFaultError as error:
    print(error)
except Exception as error:
    print("torch saw it first:", error)
"""


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_an_illegal_access_names_the_kernel(blocking: str) -> None:
    script = FAULT if blocking == "1" else FAULT.replace("        torch.cuda._sleep(1000)\n", "")
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    environment = os.environ | {"CUDA_LAUNCH_BLOCKING": blocking, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=root)
    assert "illegal" in done.stdout, done.stdout + done.stderr
    # Unless every launch waits, torch may be the first to ask the driver.
    assert "kernel wild failed" in done.stdout or (blocking == "0" and "torch saw it first" in done.stdout)
