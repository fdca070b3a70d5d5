"""What kernels are told about the device they run on: the processor, under the names that Triton has for a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


class Processor:
    """The device: this machine's processor."""

    utils = _Facts()

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
        from weft.frontends.triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1 << 26, dtype=torch.int8)

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


class _Drivers:
    """Triton's holder of the device's driver."""

    default = Processor()

    def __init__(self) -> None:
        self.active: Any = self.default

    def set_active(self, driver: Any) -> None:
        self.active = driver

    def reset_active(self) -> None:
        self.active = self.default


driver = _Drivers()
