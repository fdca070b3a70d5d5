"""A model's graph in a process that has no torch: exported as text with its weights, compiled and run there, and timed.

    python -m weft.testing.without_torch --batch 1

exports MiniLM and times it here, compiled by Weft under torch, and there, in turns. In the other process torch cannot
be imported, and neither a BLAS nor an OpenMP library is loaded but for what NumPy brings for itself. Where other
programs want the same cores, compare the processor's time with `--threads 1`: threads that wait for each other are
counted too, and OpenMP's do so for longer than Weft's.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

GRAPH, ARRAYS = "graph.mlir", "arrays.npz"
_BLOCKED = ("torch", "functorch", "scipy", "onnx", "jax")
_FOREIGN = ("gomp", "iomp", "libomp", "mkl", "openblas", "blis", "torch")
_NUMPYS_OWN = "libscipy_openblas"


class Blocker:
    """Refuses to import frameworks; an entry of `sys.meta_path`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in _BLOCKED:
            raise ModuleNotFoundError(f"{name} is not to be imported here", name=name)


def export_graph(module: Any, given: Mapping[str, Any], folder: Path, *, freeze: bool = True) -> Callable[[], Any]:
    """Write the text of a module's graph and all that it takes to a folder; returns the compiled call."""
    import torch

    from weft.runtime.record import recording

    torch.compiler.reset()
    run: Any = torch.compile(module, backend="weft", options={"cache": False, "freeze": freeze})
    with torch.no_grad(), recording(programs=True, inputs=True) as records:
        run(**given)
    (record,) = records
    assert record.inputs is not None
    (folder / GRAPH).write_text(str(record.programs["graph"]))
    np.savez(folder / ARRAYS, *record.inputs)  # pyright: ignore[reportArgumentType]
    # The one that observes its calls is not the quickest.
    torch.compiler.reset()
    plain: Any = torch.compile(module, backend="weft", options={"cache": False, "freeze": freeze})

    def call() -> Any:
        with torch.no_grad():
            return plain(**given)

    return call


class Seconds(NamedTuple):
    """How long a call takes: until it returns, and of all the process's threads together."""

    elapsed: float
    processor: float


class Elsewhere:
    """The graph of a folder in a process of its own, without torch."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        command = [sys.executable, "-m", "weft.testing.without_torch", "--child", str(folder), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._answer()
        """What the process says of itself: the libraries that it has loaded, and the seconds to compile."""

    def results(self, file: Path) -> list[np.ndarray]:
        """What the function gives, by way of a file."""
        self._ask({"save": str(file)})
        with np.load(file) as found:
            return [found[name] for name in found.files]

    def times(self, calls: int) -> list[Seconds]:
        """How long calls take."""
        return [Seconds(*each) for each in self._ask({"calls": calls})["seconds"]]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process without torch has ended with {self.process.wait(timeout=60)}")
        return json.loads(line)


def foreign_libraries() -> list[str]:
    """Libraries for products and threads that this process has loaded, but for NumPy's own."""
    names = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted(name for name in names if any(word in name for word in _FOREIGN) and not name.startswith(_NUMPYS_OWN))


def _child(folder: Path, threads: int) -> None:
    sys.meta_path.insert(0, Blocker())
    from weft.config import Config
    from weft.frontends.text import compile_text

    text = (folder / GRAPH).read_text()
    with np.load(folder / ARRAYS) as found:
        arrays = [found[name] for name in found.files]
    start = time.perf_counter()
    config = Config(cache=False)
    function = compile_text(text, config=config, threads=threads or None)
    if fixed := function.signature.constants:
        weights = {function.signature.names[place]: arrays[place] for place in fixed}
        function = compile_text(text, config=config, constants=weights, threads=threads or None)
        arrays = [array for place, array in enumerate(arrays) if place not in fixed]
    function(*arrays)
    facts = {"compile": time.perf_counter() - start, "libraries": foreign_libraries(), "torch": "torch" in sys.modules}
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any] = {}
        if "save" in question:
            np.savez(question["save"], *function(*arrays))  # pyright: ignore[reportArgumentType]
        else:
            answer["seconds"] = timed(lambda: function(*arrays), question["calls"])
        print(json.dumps(answer), flush=True)


def timed(call: Callable[[], Any], calls: int) -> list[Seconds]:
    """How long calls take, one after the other."""
    seconds: list[Seconds] = []
    for _ in range(calls):
        start, processor = time.perf_counter(), time.process_time()
        call()
        seconds.append(Seconds(time.perf_counter() - start, time.process_time() - processor))
    return seconds


def compare(batch: int, rounds: int, folder: Path, *, freeze: bool = True, threads: int = 0) -> dict[str, float]:
    """Milliseconds of MiniLM with torch and without: the medians of turns, and the speed without relative to with."""
    import torch

    from weft.testing.models import FULL_SIZE, padded_tokens

    if threads:
        torch.set_num_threads(threads)

    module = FULL_SIZE["minilm"].build()
    call = export_graph(module, padded_tokens(batch, 128, 30522)(0), folder, freeze=freeze)
    elsewhere = Elsewhere(folder, threads)
    calls = max(3, 40 // batch)
    timed(call, 3)
    elsewhere.times(3)
    turns = [(_medians(timed(call, calls)), _medians(elsewhere.times(calls))) for _ in range(rounds)]
    elsewhere.close()
    here, there = ([turn[side].elapsed for turn in turns] for side in (0, 1))
    return {
        "with_torch_ms": 1e3 * median(here),
        "without_ms": 1e3 * median(there),
        "speed": median(a.elapsed / b.elapsed for a, b in turns),
        "speed_by_processor_time": median(a.processor / b.processor for a, b in turns),
    }


def _medians(seconds: list[Seconds]) -> Seconds:
    return Seconds(median(each.elapsed for each in seconds), median(each.processor for each in seconds))


def _main() -> None:
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(description="MiniLM with torch and without.")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="of both; as many as there are cores for if 0")
    parser.add_argument("--not-frozen", action="store_true", help="weights are arguments")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        frozen = not given.not_frozen
        found = compare(given.batch, given.rounds, Path(folder), freeze=frozen, threads=given.threads)
    print(f"{os.cpu_count()} cores, batch {given.batch}: ", *(f"{name} {value:.3f}" for name, value in found.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        _main()
