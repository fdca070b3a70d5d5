"""What a program of a kernel is made of on its device: warps and threads; and when the next kernel may begin."""

from __future__ import annotations

from typing import NoReturn

from weft.frontends.triton.errors import KernelUnsupportedError
from weft.frontends.triton.language.constants import constexpr
from weft.frontends.triton.target import driver


def num_warps() -> constexpr:
    """How many warps a program has: one on a CPU, where a program is one thread."""
    return constexpr(driver.active.warps)


def num_threads() -> constexpr:
    """How many threads a program has."""
    device = driver.active
    return constexpr(device.warps * device.get_current_target().warp_size)


def gdc_wait() -> None:
    """Wait for the kernel before: it has ended when this one begins."""


def gdc_launch_dependents() -> None:
    """Let the next kernel begin early: it begins when this one has ended."""


def smid() -> NoReturn:
    """Which multiprocessor a program runs on: Weft's programs do not know, as several may take turns on one block."""
    raise KernelUnsupportedError(
        "a program is not told which multiprocessor it runs on", hint="time kernels with torch.profiler"
    )


def globaltimer() -> NoReturn:
    """Nanoseconds: passes may move work across the reading of a clock, so there is none."""
    raise KernelUnsupportedError("a program has no clock", hint="time kernels with torch.profiler")
