"""The child process of `weft conform`: a model, a training run, a tutorial or an operator's errors on request."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weft.testing.bench.benchmark import describe
from weft.testing.child import Answer, serve_requests
from weft.testing.devices import is_usable


def check(kind: str, name: str, settings: dict[str, Any]) -> tuple[bool, str]:
    """Whether a thing is as it should be, and what is to be said of it."""
    device, dtype = settings["device"], getattr(torch, settings["dtype"])
    if kind == "tutorial":
        import weft.triton
        from weft.testing.triton.triton_tutorial_cases import CASES
        from weft.testing.triton.triton_tutorials import tutorial_result

        with weft.triton.enable():
            result = tutorial_result(Path(settings["checkout"]), name, CASES[name], device)
        return result.passed, result.error or ""
    if kind == "raises":
        from weft.testing.conformance.raise_child import check_unit

        tally = check_unit(f"{name} {settings['dtype']}")
        return not tally.wrong, str(tally)
    from weft.testing.conformance.model_check import check_model, compile_with
    from weft.testing.models import FULL_SIZE, SMALL

    compiled = compile_with("weft", cache=False)
    case = {**FULL_SIZE, **SMALL}[name]
    if kind == "training":
        from weft.testing.conformance.training import check_training

        followed = check_training(case, compiled, steps=settings["steps"], device=device, dtype=dtype)
        return followed.ok, str(followed)
    report = check_model(case, compiled, device=device, dtype=dtype)
    return report.ok, "" if report.ok else str(report)


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    if settings["device"] != "cpu":
        torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False

    def handle(request: dict[str, Any], answer: Answer) -> None:
        start = time.perf_counter()
        try:
            ok, said = check(request["kind"], request["name"], {**settings, **request})
        except Exception as error:  # whatever goes wrong is the verdict
            ok, said = False, describe(error)
        answer({"ok": ok, "said": said, "seconds": time.perf_counter() - start})
        if not is_usable(settings["device"]):
            os._exit(0)  # what torch would tidy up in such a context fails

    return handle


if __name__ == "__main__":
    serve_requests(_prepare)
