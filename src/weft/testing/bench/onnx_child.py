"""The child process of `weft bench model.onnx`: loads a model, says how long that took, and races it with its peer.

It has no framework, as a program that deploys a model has none; nor the caches of another process.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.testing.child import Answer, serve_requests


def prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    """What answers: `start` loads the model and makes the first call, `race` measures it beside its peer."""
    warnings.simplefilter("ignore")
    clock = time.process_time if settings["processor_time"] else time.perf_counter
    begun = clock()
    import weft.onnx
    from weft.errors import WeftError
    from weft.testing.bench.benchmark import describe
    from weft.testing.bench.onnx_inputs import InputRules

    imported = clock() - begun
    path, threads = Path(settings["path"]), int(settings["threads"])
    rules = InputRules(settings["sizes"], settings["shapes"], settings["contents"])
    state: dict[str, Any] = {}

    def start() -> dict[str, Any]:
        begun = clock()
        model = weft.onnx.load(path, threads=threads)
        loaded = clock() - begun
        arrays = rules.arrays(model.inputs)
        begun = clock()
        results = model.run((), arrays)
        state.update(model=model, arrays=arrays, results=results)
        first = clock() - begun
        shapes = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
        return {"import": imported, "load": loaded, "first_call": first, "inputs": shapes}

    def handle(request: dict[str, Any], answer: Answer) -> None:
        try:
            if request["do"] == "start":
                answer({"ok": True} | start())
            else:
                answer({"ok": True} | _race(state, path, threads, clock, request))
        except (WeftError, OSError, ValueError) as error:
            answer({"ok": False, "said": describe(error)})

    return handle


def _race(
    state: Mapping[str, Any], path: Path, threads: int, clock: Callable[[], float], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Seconds of every round by contender, and how far their results are apart."""
    from weft.testing.bench.benchmark import ONNX_RUNTIME, WEFT, Call, Limits, interleave

    model, arrays = state["model"], state["arrays"]
    calls: dict[str, Call] = {WEFT: lambda: model.run((), arrays)}
    found: dict[str, Any] = {}
    theirs: list[Any] = []
    if request["peer"]:
        from weft.testing.bench.onnx_difference import difference
        from weft.testing.bench.onnx_session import open_session

        begun = clock()
        session = open_session(path, threads)
        found["peer_load"] = clock() - begun
        theirs = session.run(None, arrays)
        found["error"] = difference(state["results"], theirs)
        calls[ONNX_RUNTIME] = lambda: session.run(None, arrays)
    if request.get("float64"):
        from weft.testing.bench.onnx_float64 import error_to, run_in_float64

        exact = run_in_float64(path, arrays, threads)
        found["float64_error"] = error_to(exact, state["results"])
        if request["peer"]:
            found["peer_float64_error"] = error_to(exact, theirs)
    limits = Limits(request["rounds"], min(request["rounds"], Limits().least), request["seconds"])

    def seconds_of(call: Call) -> float:
        begun = clock()
        call()
        return clock() - begun

    race = interleave(calls, limits, seconds_of=seconds_of)
    if WEFT in race.failures:
        raise ValueError(race.failures[WEFT])
    return found | {
        "seconds": {name: list(timing.seconds) for name, timing in race.timings.items()},
        "failures": race.failures,
    }


if __name__ == "__main__":
    serve_requests(prepare)
