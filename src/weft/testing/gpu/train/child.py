"""The child process of one contender of the suite `train`: it begins when asked, then gives samples."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from weft.testing.bench.benchmark import describe
from weft.testing.child import Answer, serve_requests
from weft.testing.devices import device_named
from weft.testing.gpu.case import Place, weft_contender
from weft.testing.gpu.peers import eager, inductors
from weft.testing.gpu.train.models import train_case_named
from weft.testing.gpu.train.session import Session


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    place = Place(device_named(settings["device"]), settings["shrink"])
    sessions: list[Session] = []

    def answered(request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "load":  # what takes long to import is no contender's
                import transformers  # noqa: F401  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]

                return {}
            case "begin":
                contenders = {each.name: each for each in (eager(), *inductors(place), weft_contender())}
                sessions.append(Session(train_case_named(request["case"]), contenders[settings["contender"]], place))
                return sessions[0].begin(request["steps"], profile=request["profile"])
            case _:
                return {"seconds": sessions[0].sample()}

    def handle(request: dict[str, Any], answer: Answer) -> None:
        try:
            answer(answered(request))
        except Exception as error:  # a contender may fail in any way: that is its result
            answer({"error": describe(error)})

    return handle


if __name__ == "__main__":
    serve_requests(_prepare)
