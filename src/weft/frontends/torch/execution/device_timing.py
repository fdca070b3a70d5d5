"""How long programs take on a GPU: what tiles are chosen by where schedules are measured."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch

from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.ir.types import Tensor, tensor_of
from weft.ops.graph import FuncOp

if TYPE_CHECKING:  # brings the whole compiler for GPUs with it
    from weft.runtime.tune_device import Candidate, DeviceTimer

_ROUNDS, _CACHE_BYTES, _DELAY = 9, 128 << 20, 100_000
"""Samples of each program; what clears the L2 cache; and the cycles in which the host gets ahead."""


def timer_on(device: torch.device) -> DeviceTimer:
    """A timer of programs on a device: medians of runs in turns, each with nothing in the cache."""

    def time_programs(function: FuncOp, programs: Sequence[Candidate]) -> list[float]:
        from weft.frontends.torch.execution.cuda_executor import CudaExecutor, load_program  # not there without CUDA

        with torch.cuda.device(device):
            inputs = [_random(tensor_of(value.type), device) for value in function.block.args]
            cleared = torch.empty(_CACHE_BYTES, dtype=torch.int8, device=device)
            loaded = [load_program(plan, code, device=device.index or 0) for plan, code in programs]
            calls = [CudaExecutor(each, OpaqueRuntime({}), cuda_graphs=False) for each in loaded]
            samples: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in calls]
            for round_ in range(_ROUNDS + 1):  # the first one warms up
                for call, taken in zip(calls, samples, strict=True):
                    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    cleared.zero_()
                    torch.cuda._sleep(_DELAY)  # pyright: ignore[reportPrivateUsage]
                    before.record()
                    call(inputs, {})
                    after.record()
                    taken += [(before, after)] if round_ else []
            torch.cuda.synchronize()
            return [median(a.elapsed_time(b) for a, b in taken) / 1e3 for taken in samples]

    return time_programs


def _random(tensor: Tensor, device: torch.device) -> torch.Tensor:
    shape, dtype = [size for size in tensor.shape if isinstance(size, int)], to_torch(tensor.dtype)
    if tensor.dtype.is_float:
        return torch.randn(shape, device=device).to(dtype)
    return torch.randint(0, 2, shape, device=device).to(dtype)
