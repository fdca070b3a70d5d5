"""The suite `compile`: how long a model takes to compile, cold with Inductor and Weft, and from Weft's disk cache.

Every figure comes from a process of its own, with fresh cache folders and Inductor's caches off; the compilers take
turns. `backend` counts from the graphs that AOTAutograd hands over until callables are back, `first_call` is the whole
first call, with the tracing by Dynamo that both pay.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.testing.bench.benchmark import INDUCTOR, WEFT, Progress, cpp_compiler, describe

MODELS = ("minilm", "gpt2_small", "llama_12")
WARM = "weft_warm"
LONGEST_SECONDS = 1200
# The exit code of a process whose last line of output says what went wrong.
FAILED = 3


@dataclass(frozen=True, slots=True)
class CompileTime:
    """One process: seconds inside the backend and of the whole first call, and how many graphs there were."""

    backend: float
    first_call: float
    graphs: int


@dataclass(slots=True)
class CompileResult:
    """One model: its compilations by `inductor`, `weft` and `weft_warm`, and who failed and why."""

    name: str
    times: dict[str, list[CompileTime]] = field(default_factory=dict[str, list[CompileTime]])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def ok(self) -> bool:
        return WEFT not in self.failures and WARM not in self.failures

    @property
    def trouble(self) -> str:
        """What went wrong, with whom."""
        return "; ".join(f"{who} failed: {what}" for who, what in self.failures.items())

    def backend(self, who: str) -> float | None:
        """The median of the seconds inside the backend."""
        found = self.times.get(who)
        return statistics.median(each.backend for each in found) if found else None

    def first_call(self, who: str) -> float | None:
        """The median of the seconds of the first call."""
        found = self.times.get(who)
        return statistics.median(each.first_call for each in found) if found else None

    def figures(self) -> dict[str, Any]:
        return {
            "suite": "compile",
            "name": self.name,
            "backend_seconds": {who: self.backend(who) for who in self.times},
            "first_call": {who: self.first_call(who) for who in self.times},
            "graphs": {who: found[0].graphs for who, found in self.times.items()},
            "failures": self.failures,
        }


def compile_ratio(results: Sequence[CompileResult], *, first_call: bool = False) -> float | None:
    """Weft's cold seconds over Inductor's, summed over the models that both compiled; None when there are none."""
    pairs: list[tuple[float, float]] = []
    for result in results:
        measure = result.first_call if first_call else result.backend
        mine, theirs = measure(WEFT), measure(INDUCTOR)
        if mine is not None and theirs is not None:
            pairs.append((mine, theirs))
    return sum(mine for mine, _ in pairs) / sum(theirs for _, theirs in pairs) if pairs else None


def measure_model(
    name: str, *, threads: int | None = None, repeats: int = 1, progress: Progress | None = None
) -> CompileResult:
    """Compile a model in fresh processes, Inductor and Weft in turns, then Weft again from its disk cache."""
    result = CompileResult(name)
    cold = [WEFT] if cpp_compiler() is None else [INDUCTOR, WEFT]
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as kept:
        # The first process of the warm series fills the cache, those after it count.
        for who in [*(cold * repeats), None, *([WARM] * repeats)]:
            if who in result.failures or (who in (None, WARM) and WEFT in result.failures):
                continue
            if progress is not None:
                progress(f"{who} compiles" if who else "filling the disk cache")
            try:
                found = _in_a_process(name, who or WARM, threads, Path(kept))
            except subprocess.TimeoutExpired:
                result.failures[who or WARM] = f"took longer than {LONGEST_SECONDS} s"
                continue
            except WeftError as error:
                result.failures[who or WARM] = error.message
                continue
            if who is not None:
                result.times.setdefault(who, []).append(found)
    return result


def _in_a_process(name: str, who: str, threads: int | None, kept: Path) -> CompileTime:
    backend = INDUCTOR if who == INDUCTOR else WEFT
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as fresh:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CACHE_DIR": fresh,
            "WEFT_CACHE": "1" if who == WARM else "0",
            "WEFT_CACHE_DIR": str(kept if who == WARM else fresh),
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "weft.testing.compile_times", name, backend, str(threads or 0)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONGEST_SECONDS)
    if done.returncode != 0:
        said = (done.stdout if done.returncode == FAILED else done.stderr).strip().splitlines()[-1:]
        raise WeftError("".join(said) or f"the process ended with {done.returncode}")
    return CompileTime(**json.loads(done.stdout.splitlines()[-1]))


def compile_here(name: str, backend: str, threads: int) -> CompileTime:
    """Compile a model in this process, which should be a new one."""
    import torch

    from weft.runtime.record import recording
    from weft.testing.bench.compile_clock import compile_clock
    from weft.testing.models import FULL_SIZE, SMALL

    case = {**SMALL, **FULL_SIZE}.get(name)
    if case is None:
        raise WeftError(f"no model is called {name}", hint=f"there are {', '.join([*FULL_SIZE, *SMALL])}")
    if threads:
        torch.set_num_threads(threads)
    module, inputs = case.build(), case.inputs(0)
    with torch.no_grad(), compile_clock() as clock, recording() as records:
        compiled = torch.compile(module, backend=backend, fullgraph=True)
        start = time.perf_counter()
        compiled(**inputs)
        first_call = time.perf_counter() - start
    for record in records:
        if record.error is not None:  # a graph that runs as torch runs it took no time to compile
            raise WeftError(f"Weft left a graph to torch: {record.error}")
    if clock.graphs == 0:
        raise WeftError(f"no graph of {name} reached the backend {backend} through AOTAutograd")
    return CompileTime(clock.seconds, first_call, clock.graphs)


def _main(name: str, backend: str, threads: str) -> int:
    # Whatever goes wrong is for the report of the process that waits.
    try:
        found = compile_here(name, backend, int(threads))
    except Exception as error:
        traceback.print_exc()
        print(describe(error))
        return FAILED
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
