"""How much memory a model's calls take beyond what lies there between them: Weft against eager, in fresh processes.

The state that counts as given is the one after a first call: the model is loaded, programs are compiled, weights are
packed, and what is kept for the next call has been given back. From there on the peak of the resident memory is taken
over some calls. Packed weights are counted by themselves.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError, WeftError
from weft.testing.bench.benchmark import EAGER, WEFT, Call, Contender, Progress, contenders, describe

if TYPE_CHECKING:
    from weft.runtime.constant_sets import ConstantSet
    from weft.testing.bench.benchmark_case import Case

CALLS = 3
RESOLUTION = 1 << 20
"""Bytes below which growth says nothing: allocators hold about as much ready."""
LONGEST_SECONDS = 1200
FAILED = 3
"""The exit code of a process that says on stdout what went wrong."""
SETTINGS = {"MIMALLOC_PURGE_DELAY": "0"}
"""Of a process that is measured: mimalloc, which torch brings on some machines, gives memory back when it is freed."""
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Memory:
    """Bytes: the growth of the peak over calls, weights that were packed or prepared, and the model's own."""

    growth: int
    packed: int
    weights: int


@dataclass
class MemoryResult:
    """What the contenders took for one model, and who failed and why."""

    name: str
    taken: dict[str, Memory] = field(default_factory=dict[str, Memory])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def ok(self) -> bool:
        """Weft was measured; how much it took is another question."""
        return WEFT not in self.failures

    @property
    def trouble(self) -> str:
        return "; ".join(f"{who} failed: {what}" for who, what in self.failures.items())

    @property
    def ratio(self) -> float | None:
        """Weft's growth over eager's, both at least what can be told apart: at most 1 is what is wanted."""
        if not {EAGER, WEFT} <= self.taken.keys():
            return None
        mine, theirs = (max(self.taken[who].growth, RESOLUTION) for who in (WEFT, EAGER))
        return mine / theirs

    def figures(self) -> dict[str, Any]:
        return {
            "suite": "memory",
            "name": self.name,
            "peak_growth": {who: found.growth for who, found in self.taken.items()},
            "packed": self.taken[WEFT].packed if WEFT in self.taken else None,
            "weights": next((found.weights for found in self.taken.values()), None),
            "memory_ratio": self.ratio,
            "failures": self.failures,
        }


def measure_memory(name: str, *, threads: int | None = None, progress: Progress | None = None) -> MemoryResult:
    """Measure eager and Weft on a model, each in a process of its own."""
    result = MemoryResult(name)
    for who in (EAGER, WEFT):
        if progress is not None:
            progress(f"{who} runs")
        command = [sys.executable, "-m", "weft.testing.peak_memory", name, who, str(threads or 0)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LONGEST_SECONDS, env={**os.environ, **SETTINGS}
            )
        except subprocess.TimeoutExpired:
            result.failures[who] = f"took longer than {LONGEST_SECONDS} s"
            continue
        if done.returncode == 0:
            result.taken[who] = Memory(**json.loads(done.stdout.splitlines()[-1]))
            continue
        said = (done.stdout if done.returncode == FAILED else done.stderr).strip().splitlines()[-1:]
        result.failures[who] = "".join(said) or f"the process ended with {done.returncode}"
    return result


def growth_over(call: Call, settle: Callable[[], None], calls: int = CALLS) -> int:
    """By how many bytes the resident memory grows at most during some calls, after a first one and `settle`."""
    call()
    settle()
    before = reset_peak()
    for _ in range(calls):
        call()
    return max(0, peak() - before)


def reset_peak() -> int:
    """Let the peak begin anew at what is resident now, which is returned."""
    if not _RESET.exists():
        raise UnsupportedError("peak memory is read from Linux's /proc", hint="run this suite on Linux")
    _RESET.write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes that were resident since the peak began anew."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise UnsupportedError(f"{_STATUS} does not say {name}")


def give_back() -> None:
    """Free what nobody holds and what programs keep between calls, and return it to the system."""
    for executor in _executors():
        executor.release()
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library than glibc has no such function
        ctypes.CDLL(None).malloc_trim(0)


def packed_bytes() -> int:
    """The memory of all constants that programs made of weights, which is not the weights' own."""
    return sum(set_bytes(each) for executor in _executors() for each in executor.sets)


def set_bytes(constants: ConstantSet[Any]) -> int:
    """The bytes of a set's tensors that do not lie in the memory of a weight; memory that two share counts once."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in constants.memory}
    storages = (tensor.untyped_storage() for tensor in constants.tensors.values())
    made: Mapping[int, int] = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(size for pointer, size in made.items() if pointer not in weights)


def _executors() -> Iterator[Any]:
    from weft.frontends.torch.execution.executor import CpuExecutor

    return (found for found in gc.get_objects() if type(found) is CpuExecutor)


def weight_bytes(modules: Iterable[Any]) -> int:
    """The bytes of the parameters and buffers of modules; what they share counts once."""
    tensors = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
    storages = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())


def measure_here(case: Case, who: str, threads: int) -> Memory:
    """Measure one contender in this process, which should be a new one."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    compiled: list[Any] = []

    def noted(contender: Contender) -> Contender:
        def compile(function: Callable[..., Any]) -> Callable[..., Any]:
            compiled.append(function)
            return contender.compile(function)

        return Contender(contender.name, compile)

    (contender,) = (each for each in contenders(frozen=case.frozen) if each.name == who)
    with torch.no_grad():
        call = case.build()(noted(contender))
        growth = growth_over(call, give_back)
    return Memory(growth, packed_bytes(), weight_bytes(compiled))


def _main(name: str, who: str, threads: str) -> int:
    from weft.testing.bench.benchmark_models import model_cases

    # Whatever goes wrong is for the report of the process that waits.
    try:
        cases = {case.name: case for case in model_cases()}
        if name not in cases:
            raise WeftError(f"no model is called {name}", hint=f"there are {', '.join(cases)}")
        found = measure_here(cases[name], who, int(threads))
    except Exception as error:
        traceback.print_exc()
        print(describe(error))
        return FAILED
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
