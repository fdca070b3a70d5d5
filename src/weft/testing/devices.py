"""Where work runs and how it is timed: a CUDA device, or the host in its place so that every line runs without a GPU.

`kernel_seconds` is what a GPU spends: the L2 is flushed first, events stand around the work alone, and the GPU is kept
busy until the host has queued it all. `wall_seconds` is what a caller waits, the host's part included.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.errors import NoDeviceError

Call = Callable[[], Any]

FLUSH_BYTES = 256 << 20
CYCLES_A_SECOND = 2e9
LONGEST_WAIT = 20e-3

# Dense bf16 FLOP/s that the makers state, by a part of the device's name.
NOMINAL_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


class Device(Protocol):
    """A place where tensors lie and calls are timed."""

    @property
    def name(self) -> str: ...  # as torch calls it

    @property
    def nominal_flops(self) -> float | None: ...  # of bf16 products; None where it is not known

    def kernel_seconds(self, call: Call) -> float: ...

    def wall_seconds(self, call: Call) -> float: ...

    def captured(self, call: Call) -> Call: ...  # the call as a graph that is replayed

    def tidy(self) -> None: ...  # give back what nobody holds

    def described(self) -> dict[str, Any]: ...  # for the results of a run


def device_named(name: str) -> Device:
    """The device that torch calls so."""
    if name == "cpu":
        return HostDevice()
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "torch finds no CUDA device here",
            hint="`weft doctor` says why; `weft bench gpu --rehearse` runs small cases on the CPU",
        )
    return CudaDevice(name)


def is_usable(device: str) -> bool:
    """Whether a device still does work: after an illegal access, a GPU's context fails for the rest of the process."""
    if not device.startswith("cuda"):
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


@dataclass
class HostDevice:
    """The CPU where a GPU is meant: times mean nothing here, but everything runs."""

    name: str = "cpu"
    nominal_flops: float | None = 1e12

    def kernel_seconds(self, call: Call) -> float:
        return self.wall_seconds(call)

    def wall_seconds(self, call: Call) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def captured(self, call: Call) -> Call:
        call()
        return call

    def tidy(self) -> None:
        gc.collect()

    def described(self) -> dict[str, Any]:
        return {"gpu": "none: a rehearsal on the CPU", "driver": None, "torch": torch.__version__}


@dataclass
class CudaDevice:
    """A GPU, by torch's caching allocator and current stream."""

    name: str = "cuda"
    _flush: Tensor | None = None
    _queueing: dict[int, float] = field(default_factory=dict[int, float])
    """How long the host took to queue a call, last time."""

    @property
    def nominal_flops(self) -> float | None:
        model = torch.cuda.get_device_name(self.name)
        return next((flops for part, flops in NOMINAL_FLOPS.items() if part in model), None)

    def kernel_seconds(self, call: Call) -> float:
        if self._flush is None:
            self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=self.name)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        # The GPU waits as long as the host needs to queue the work, else the events would count the host's time.
        wait = min(2 * self._queueing.get(id(call), 1e-3) + 50e-6, LONGEST_WAIT)
        torch.cuda._sleep(int(wait * CYCLES_A_SECOND))
        begin.record()
        start = time.perf_counter()
        call()
        self._queueing[id(call)] = time.perf_counter() - start
        end.record()
        torch.cuda.synchronize(self.name)
        return begin.elapsed_time(end) * 1e-3

    def wall_seconds(self, call: Call) -> float:
        torch.cuda.synchronize(self.name)
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize(self.name)
        return time.perf_counter() - begin

    def captured(self, call: Call) -> Call:
        # Whatever a first call allocates or compiles must not stand in the graph.
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = call()

        def replay() -> Any:
            graph.replay()
            return results

        return replay

    def tidy(self) -> None:
        self._queueing.clear()  # by identity, which another call may get
        gc.collect()
        torch.cuda.synchronize(self.name)
        torch.cuda.empty_cache()

    def described(self) -> dict[str, Any]:
        properties: Any = torch.cuda.get_device_properties(self.name)
        return {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "driver": driver_version(),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
        }


def driver_version() -> str | None:
    """The GPU driver's, by nvidia-smi; None where that is not found."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return said.splitlines()[0].strip() if said.strip() else None
