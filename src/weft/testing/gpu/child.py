"""The child process of a GPU benchmark: cases run here one after the other, and a broken context ends with it.

Before the first case both compilers compile something small, so that no case pays for what is loaded once.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.testing.bench.benchmark import INDUCTOR, Limits, describe
from weft.testing.child import Answer, serve_requests
from weft.testing.devices import device_named, is_usable
from weft.testing.gpu.case import Place, run_gpu_case
from weft.testing.gpu.suites import case_named


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    place = Place(device_named(settings["device"]), settings["shrink"])
    limits = Limits(settings["rounds"], min(settings["rounds"], 5), settings["seconds"], 0.0)
    _warm_up(place)

    def handle(request: dict[str, Any], answer: Answer) -> None:
        if "about" in request:
            answer({"about": place.device.described()})
            return
        case = case_named(request["suite"], request["case"])
        try:
            row = run_gpu_case(case, place, limits, thorough=request["thorough"])
        except Exception as error:  # building a case may fail in any way: that is its result
            row: dict[str, Any] = {"suite": case.suite, "name": case.name, "ok": False, "error": describe(error)}
        answer({"row": row})
        if not is_usable(place.device.name):
            os._exit(0)  # what torch would tidy up in such a context fails

    return handle


def _line(x: Tensor) -> Tensor:
    return x * 2 + 1


def _warm_up(place: Place) -> None:
    backends = ["weft"] if place.device.name == "cpu" else [INDUCTOR, "weft"]
    x = place.normal(64, 64)
    for backend in backends:
        # Who cannot do even this says so in every case.
        with contextlib.suppress(Exception), torch.no_grad():
            torch.compile(_line, backend=backend)(x)
    torch.compiler.reset()


if __name__ == "__main__":
    serve_requests(_prepare)
