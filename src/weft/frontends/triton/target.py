"""What kernels are told about their device: a GPU, or the processor under the names that Triton has for one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from weft.backends.nvidia.driver.libcuda import device_facts


@dataclass(frozen=True)
class GPUTarget:
    """What a kernel is compiled for, as Triton names it."""

    backend: str
    arch: int | str
    warp_size: int


class _Facts:
    """Figures that kernels choose grids and tiles by."""

    @staticmethod
    def get_device_properties(device: Any = None) -> dict[str, int]:
        return {
            "multiprocessor_count": len(os.sched_getaffinity(0)),
            "max_shared_mem": 1 << 20,
            "max_num_regs": 1 << 16,
            "warpSize": 1,
            "sm_clock_rate": _processor_khz(),
            # What every machine with two channels of DDR4 has: it is not known, and models divide by it.
            "mem_clock_rate": 1_600_000,
            "mem_bus_width": 128,
        }


@lru_cache
def _processor_khz() -> int:
    """The clock of the processor as the system states it; a usual one where it does not."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text())
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return int(float(line.partition(":")[2]) * 1000)
    return 2_000_000


class Processor:
    """The device: this machine's processor."""

    utils = _Facts()
    warps = 1
    """Of a program."""

    def get_current_target(self) -> GPUTarget:
        from weft.backends.cpu.target import host_target

        return GPUTarget("cpu", host_target().cpu, 1)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        return

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        from weft.frontends.triton.tuning.do_bench import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1 << 26, dtype=torch.int8)

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


class _CudaFacts:
    """The figures of a GPU, by their names in Triton."""

    @staticmethod
    def get_device_properties(device: int = 0) -> dict[str, int]:
        facts = device_facts(device)
        return {
            "multiprocessor_count": facts.multiprocessors,
            "max_shared_mem": facts.shared_per_block,
            "max_num_regs": facts.registers_per_block,
            "warpSize": 32,
            "sm_clock_rate": facts.clock_khz,
            "mem_clock_rate": facts.memory_clock_khz,
            "mem_bus_width": facts.memory_bus_bits,
        }


class Cuda:
    """The device: torch's current GPU."""

    utils = _CudaFacts()

    def __init__(self, capability: int | None = None, warps: int = 4) -> None:
        self._torch: Any = sys.modules.get("torch")
        self._capability = capability
        self._warps = warps
        self.was_asked_for_warps = False
        """Whether what a kernel does depends on its warps."""

    @property
    def warps(self) -> int:
        """Of a program of the kernel that is being compiled."""
        self.was_asked_for_warps = True
        return self._warps

    def get_current_target(self) -> GPUTarget:
        if self._capability is not None:  # of what is being compiled for
            return GPUTarget("cuda", self._capability, 32)
        major, minor = device_facts(self.get_current_device()).capability
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return self._torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        self._torch.cuda.set_device(device)

    def get_current_stream(self, device: Any = None) -> int:
        return self._torch.cuda.current_stream(device).cuda_stream

    def get_active_torch_device(self) -> Any:
        return self._torch.device("cuda", self.get_current_device())

    def get_device_interface(self) -> Any:
        return self._torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        from weft.frontends.triton.tuning.do_bench import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        return self._torch.empty(1 << 28, dtype=self._torch.int8, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


compiled_for: ContextVar[Any] = ContextVar("compiled_for", default=None)
"""The device that a kernel is being compiled for."""


def cuda_is_there() -> bool:
    """Whether torch is loaded and finds a GPU."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


class _Drivers:
    """Triton's holder of the device's driver."""

    def __init__(self) -> None:
        self._chosen: Any = None

    @property
    def default(self) -> Any:
        return Cuda() if cuda_is_there() else Processor()

    @property
    def active(self) -> Any:
        """That of the device a kernel is compiled for; else what was set; else a GPU where there is one."""
        return compiled_for.get() or self._chosen or self.default

    def set_active(self, driver: Any) -> None:
        self._chosen = driver

    def reset_active(self) -> None:
        self._chosen = None


driver = _Drivers()
