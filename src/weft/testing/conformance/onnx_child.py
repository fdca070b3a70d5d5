"""The child process of `weft conform onnx`: it runs one case after the other, and may die of one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from weft.testing.child import Answer, serve_requests
from weft.testing.conformance.onnx_cases import cases, judge


def prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    """What answers requests for cases."""
    device = "CPU" if settings["device"] == "cpu" else "CUDA"
    warnings.simplefilter("ignore")
    for suite in settings["suites"]:  # they are made on the spot, which is not to count as the first case's time
        cases(suite)

    def handle(request: dict[str, Any], answer: Answer) -> None:
        begun = time.perf_counter()
        verdict = judge(request["kind"], request["name"], device)
        seconds = round(time.perf_counter() - begun, 3)
        answer({"ok": verdict.status == "passed", "status": verdict.status, "said": verdict.said, "seconds": seconds})

    return handle


if __name__ == "__main__":
    serve_requests(prepare)
