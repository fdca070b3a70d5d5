"""The timer of programs on a GPU, with a clock and an executor that stand for the device."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.frontends.torch.execution.device_timing import timer_on
from weft.ir.types import DType, Tensor, bf16, boolean, f8e4m3, f32, i8
from weft.ops.graph import FuncOp


class Clock:
    """An event: it reads the milliseconds that programs have taken so far."""

    now = 0.0

    def __init__(self, **options: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Clock.now

    def elapsed_time(self, other: Clock) -> float:
        return other.at - self.at


def test_programs_take_turns_on_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    types: list[DType] = [bf16, f32, f8e4m3, i8, boolean]
    calls: list[float] = []

    def run(program: float, *given: Any, **options: Any) -> Any:
        def call(inputs: list[torch.Tensor], symbols: dict[str, int]) -> None:
            assert [tuple(each.shape) for each in inputs] == [(3, 4)] * len(types)
            assert inputs[0].dtype == torch.bfloat16 and inputs[2].dtype == torch.float8_e4m3fn
            calls.append(program)
            Clock.now += program

        return call

    fake = SimpleNamespace(CudaExecutor=run, load_program=lambda plan, code, device: code)
    monkeypatch.setitem(sys.modules, "weft.frontends.torch.execution.cuda_executor", fake)
    for name, value in {
        "device": lambda device: nullcontext(),
        "Event": Clock,
        "_sleep": lambda cycles: None,
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    function = FuncOp.make("f", {f"x{n}": Tensor(dtype, (3, 4)) for n, dtype in enumerate(types)})
    programs: list[Any] = [("plan", 2.0), ("plan", 0.5)]
    assert timer_on(torch.device("cpu"))(function, programs) == [2e-3, 5e-4]
    assert calls[:4] == [2.0, 0.5, 2.0, 0.5]
