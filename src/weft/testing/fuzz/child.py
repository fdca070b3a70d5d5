"""The child process of `weft fuzz`: draws and judges programs by seed, or judges one that is given."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from weft.testing.child import Answer, serve_requests
from weft.testing.fuzz.kinds import backend_of, kind_named
from weft.testing.fuzz.verdict import Verdict


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    kind, device = kind_named(settings["kind"]), settings["device"]
    given = {"backend": backend_of(settings["kind"], settings["backend"])} if settings["backend"] else {}
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    if settings["torch"]:
        import torch

        torch.set_num_threads(2)

    def handle(request: dict[str, Any], answer: Answer) -> None:
        for seed in request.get("seeds", ()):
            start = time.perf_counter()
            case = kind.draw(seed, device)
            try:
                verdict = kind.judge(case, **given)
            except Exception as error:  # the judge itself: as much a finding as any
                verdict = Verdict("raises", f"in the judge: {type(error).__name__}: {error}"[:300])
            record = verdict.to_json() | {"seed": seed, "seconds": time.perf_counter() - start}
            answer(record | ({"case": case.to_json()} if verdict.failed else {}))
            _leave_if_broken(device)
        if "case" in request:
            answer(kind.judge(kind.read(request["case"]), **given).to_json())
            _leave_if_broken(device)
        if "drawn" in request:
            answer({"case": kind.draw(request["drawn"], device).to_json()})

    return handle


def _leave_if_broken(device: str) -> None:
    if device != "cpu":
        from weft.testing.devices import is_usable

        if not is_usable(device):
            os._exit(0)


if __name__ == "__main__":
    serve_requests(_prepare)
