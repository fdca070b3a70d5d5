"""What a device can do at best, as models of a kernel's time ask: bytes of memory and operations by the second."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from weft.errors import WeftError
from weft.frontends.triton.target import Cuda, driver

_PARTS = 4
"""Of a multiprocessor, each with units of its own."""
_FLOATS_BY_CYCLE = 64
"""Of a core of a processor: two units for fused products and sums over 16 lanes."""


class FigureError(WeftError, RuntimeError):
    """A figure that the device does not have."""


def get_dram_gbps(device: int | None = None) -> float:
    """Gigabytes by the second between memory and device."""
    facts = _facts(device)
    return facts["mem_clock_rate"] * facts["mem_bus_width"] * 2 / 1e6 / 8


def get_max_tensorcore_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """Tera-operations by the second of the units for products of matrices, at a clock in kHz."""
    bits = _bits(dtype)
    if bits not in (8, 16, 32):
        raise FigureError(f"there are no units for products of {dtype}", hint="ask for 8, 16 or 32 bits")
    by_part = {8: 1024, 16: 512, 32: 256}[bits]
    return _tera(clock_rate, device, by_part, _FLOATS_BY_CYCLE * 32 // bits)


def get_max_simd_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """Tera-operations by the second of the units for elements, at a clock in kHz."""
    bits = _bits(dtype)
    if bits not in (16, 32):
        raise FigureError(f"the peak rate of {dtype} is not known", hint="ask for 16 or 32 bits")
    return _tera(clock_rate, device, 32 * 32 // bits, _FLOATS_BY_CYCLE * 32 // bits)


def nvsmi(attrs: Sequence[str]) -> list[int]:
    """Numbers that nvidia-smi gives of the first GPU: `["clocks.current.sm"]`."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(attrs)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.check_output(command, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise FigureError("nvidia-smi does not answer", hint="it comes with NVIDIA's driver") from error
    return [int(number) for number in said.split(",")]


def _facts(device: int | None) -> dict[str, int]:
    active = driver.active
    return active.utils.get_device_properties(active.get_current_device() if device is None else device)


def _tera(clock_khz: float, device: int | None, by_part: int, by_core: int) -> float:
    count = _facts(device)["multiprocessor_count"]
    by_cycle = _PARTS * by_part if isinstance(driver.active, Cuda) else by_core
    return count * by_cycle * clock_khz * 1e-9


def _bits(dtype: Any) -> int:
    size = getattr(dtype, "itemsize", None)
    return 8 * size if isinstance(size, int) else int(getattr(dtype, "primitive_bitwidth", 0))
