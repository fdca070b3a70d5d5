"""All suites of the GPU benchmark by name, and a case of one of them."""

from __future__ import annotations

from collections.abc import Callable

from weft.errors import WeftError
from weft.testing.gpu.attention import attention_cases
from weft.testing.gpu.backward import backward_cases
from weft.testing.gpu.case import GpuCase
from weft.testing.gpu.gemv import gemv_cases
from weft.testing.gpu.kernels import kernel_cases
from weft.testing.gpu.memory import memory_cases
from weft.testing.gpu.models import model_cases
from weft.testing.gpu.products import gemm_cases, moe_cases
from weft.testing.gpu.sweeps import attention_sweep_cases, gemm_sweep_cases

SUITES: dict[str, Callable[[], list[GpuCase]]] = {
    "memory": memory_cases,
    "backward": backward_cases,
    "gemv": gemv_cases,
    "gemm": gemm_cases,
    "gemm_sweep": gemm_sweep_cases,
    "attention": attention_cases,
    "attention_sweep": attention_sweep_cases,
    "moe": moe_cases,
    "kernels": kernel_cases,
    "models": model_cases,
}


def case_named(suite: str, name: str) -> GpuCase:
    for case in SUITES[suite]():
        if case.name == name:
            return case
    raise WeftError(f"the suite {suite} has no case called {name}")
