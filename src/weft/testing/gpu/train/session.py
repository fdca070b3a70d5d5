"""One contender's training: the first step, the losses of the next, the memory they take, kernels by time, and samples.

A session has the process, and so the memory that is counted, for itself.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from weft.runtime.record import recording
from weft.testing.bench.benchmark import Contender
from weft.testing.bench.compile_clock import compile_clock
from weft.testing.gpu.case import Place, made, with_waiting
from weft.testing.gpu.train.models import TrainCase

RATE = 1e-4
WARM_STEPS = 2
"""Before a sample: memory that was given back between samples is taken again, clocks rise."""
SAMPLE_STEPS = 4
MEMORY_STEPS = 5
TOP_KERNELS = 30
_GIB = float(1 << 30)


@dataclass(frozen=True)
class Peak:
    """GiB: what torch's allocator had given out at most and what it had reserved, and what the device had given."""

    allocated: float
    reserved: float
    device: float


class Session:
    """A model that a contender trains by AdamW under bf16 autocast."""

    def __init__(self, case: TrainCase, contender: Contender, place: Place) -> None:
        self._place, self._who = place, contender.name
        self._device_before = self._free()
        module = case.model(place)
        self._batches = case.batches(place)
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, fused=True)
        self._run = contender.compile(module)
        self._taken = 0
        torch.manual_seed(2)

    def begin(self, steps: int, *, profile: bool) -> dict[str, Any]:
        """The first step, timed with all that compiles in it, the losses of `steps`, the peak, and the profile."""
        begin = time.perf_counter()
        with recording() as records:
            with compile_clock() as clock:
                losses = [self._step().item()]
                first = time.perf_counter() - begin
                losses += [self._step().item() for _ in range(steps - 1)]  # what compiles again is counted, too
            backend = with_waiting({self._who: clock.seconds}, records) if clock.graphs else {}
            found: dict[str, Any] = {"first_call": first, "backend_seconds": backend, "losses": losses, **made(records)}
        found["peak"] = vars(self._peak()) if self._is_cuda else None
        found["profile"] = self._profile() if profile else None
        return found

    def sample(self) -> float:
        """Seconds of a step, of several in a row as a loop takes them: the host may run ahead."""
        for _ in range(WARM_STEPS):
            self._step()
        seconds = self._place.device.wall_seconds(self._several) / SAMPLE_STEPS
        if self._is_cuda:
            torch.cuda.empty_cache()  # others take turns on the same device
        return seconds

    def _several(self) -> None:
        for _ in range(SAMPLE_STEPS):
            self._step()

    @property
    def _is_cuda(self) -> bool:
        return self._place.device.name.startswith("cuda")

    def _step(self) -> torch.Tensor:
        batch = self._batches[self._taken % len(self._batches)]
        self._taken += 1
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._place.device.name.split(":")[0], dtype=torch.bfloat16):
            loss = self._run(**batch).loss
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def _free(self) -> int:
        return torch.cuda.mem_get_info(self._place.device.name)[0] if self._is_cuda else 0

    def _peak(self) -> Peak:
        self._place.device.tidy()
        torch.cuda.reset_peak_memory_stats()
        least = self._free()
        for _ in range(MEMORY_STEPS):
            self._step()
            torch.cuda.synchronize()
            least = min(least, self._free())
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return Peak(allocated / _GIB, reserved / _GIB, (self._device_before - least) / _GIB)

    def _profile(self) -> dict[str, Any]:
        """Kernels of one step by time; on a CPU, torch's own operators."""
        from torch.profiler import ProfilerActivity, profile

        activity = ProfilerActivity.CUDA if self._is_cuda else ProfilerActivity.CPU
        self._step()
        with profile(activities=[activity]) as profiler:
            self._step()
            if self._is_cuda:
                torch.cuda.synchronize()
        events: list[Any] = list(profiler.events() or ())
        return summed(
            (event.name, event.time_range.start, event.time_range.end)
            for event in events
            if not self._is_cuda or event.device_type.name == "CUDA"
        )


def summed(events: Iterable[tuple[str, float, float]]) -> dict[str, Any]:
    """The kernels that take most, and what all take: of (name, start, end) in microseconds, by name.

    A kernel that is launched early waits for the one before it: it counts from the end of what began before it on.
    """
    times, counts, ended = defaultdict[str, float](float), Counter[str](), 0.0
    for name, start, end in sorted(events, key=lambda event: event[1]):
        times[name] += max(0.0, end - max(start, ended))
        counts[name] += 1
        ended = max(ended, end)
    most = sorted(times.items(), key=lambda each: -each[1])[:TOP_KERNELS]
    top = [{"name": name[:200], "us": round(us, 1), "count": counts[name]} for name, us in most]
    return {"us": round(sum(times.values()), 1), "kernels": counts.total(), "top": top}
