"""The child process of `weft conform zoo`: makes a small model of a family and judges it, on request."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from weft.testing.bench.benchmark import describe
from weft.testing.child import Answer, serve_requests
from weft.testing.devices import is_usable
from weft.testing.zoo.families import NoConfigError, small_model
from weft.testing.zoo.judge import Judge

GOOD = ("right", "torch", "none")


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    warnings.simplefilter("ignore")
    for name in ("torch", "weft", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers").logging.set_verbosity_error()
    torch.set_num_threads(settings["threads"])
    torch.backends.cudnn.allow_tf32 = False
    if settings["device"] == "cpu":  # a GPU's driver maps far more than it uses
        limit = int(settings["memory"] * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def handle(request: dict[str, Any], answer: Answer) -> None:
        start = time.perf_counter()
        record: dict[str, Any] = {}
        try:
            answer({"begun": "eager"})
            model = small_model(request["name"])
            parameters = sum(each.numel() for each in model.build().parameters())
            record = {"model": model.kind.__name__, "recipe": model.recipe.name, "parameters": parameters}
            answer({"begun": "inference", **record})
            dtype = getattr(torch, request["dtype"])
            judge = Judge(settings["device"], dtype, speed=settings["speed"], inductor=settings["inductor"])
            for mode, verdict in judge.verdicts(model):
                record[mode] = verdict.figures()
                answer({"begun": "training", **record})
            ok = all(record[mode]["status"] in GOOD for mode in ("inference", "training"))
        except NoConfigError as error:
            ok, record["no_config"] = True, error.message
        except Exception as error:  # whatever goes wrong is the verdict
            ok, record["said"] = False, describe(error)
        answer({"ok": ok, "said": "", **record, "seconds": round(time.perf_counter() - start, 1)})
        if not is_usable(settings["device"]):
            os._exit(0)  # what torch would tidy up in such a context fails

    return handle


if __name__ == "__main__":
    serve_requests(_prepare)
