"""Torch's higher-order operators, `hop_db`, one entry at a time: whole through Weft, with torch's help, or not right.

An entry is called in each mode in which eager can be: without gradients, and with them. It is compiled first with
`fallback="error"`; where that refuses something, once more without, and what torch then carries out is listed.
`weft conform hops` runs this module as its child process.
"""

# torch's testing package has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree

from weft.frontends.torch.report import record_targets
from weft.testing.child import Answer, serve_requests
from weft.testing.conformance.identity import identity_backend
from weft.testing.conformance.opinfo_cases import SEED, Case, attempt, first_line, run_case

HopStatus = Literal["whole", "helped", "wrong", "error", "skipped"]


@dataclass(frozen=True)
class HopVerdict:
    """What became of an entry, in which modes, and what is to be said of it."""

    status: HopStatus
    said: str = ""
    modes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status not in ("wrong", "error")


@cache
def entries() -> dict[str, Any]:
    """The entries of torch's database by name and variant: `map_nested`."""
    from torch.testing._internal.hop_db import hop_db

    return {op.formatted_name: op for op in hop_db}


def takes(name: str, dtype: str) -> bool:
    """Whether an entry has samples of an element type; some are said to be for GPUs, and run on a CPU too."""
    op = entries()[name]
    return any(getattr(torch, dtype) in op.supported_dtypes(kind) for kind in ("cpu", "cuda"))


def judge_hop(name: str, dtype: str, device: str = "cpu", *, dynamic: bool = False) -> HopVerdict:
    """The verdict on an entry: of its samples, the first that is not whole."""
    op, kind = entries()[name], getattr(torch, dtype)
    differentiable = op.supports_autograd and (kind.is_floating_point or kind.is_complex)
    torch.manual_seed(SEED)
    verdict = HopVerdict("skipped", "it has no samples")
    try:
        samples = list(op.sample_inputs(device, kind, requires_grad=differentiable))
    except Exception as error:  # an entry may state types in which its own samples cannot be made
        return HopVerdict("skipped", f"no samples: {first_line(error)}")
    for sample in samples:
        verdict = _judge(op, sample, dynamic)
        if verdict.status != "whole":
            break
    return verdict


def _judge(op: Any, sample: Any, dynamic: bool) -> HopVerdict:
    compiling = {"dynamic": dynamic, "fullgraph": True}
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    trains = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
    eager: dict[bool, Any] = {}
    refused = ""
    for training in (False, True) if trains else (False,):
        try:
            case = Case(op, sample, (training,), compiling)
            eager[training] = run_case(case, case.arguments, None, None, training)
        except Exception as error:  # what eager does not do there is nothing to compare with
            refused = f"eager: {first_line(error)}"
    if not eager:
        return HopVerdict("skipped", refused)
    case, expected = Case(op, sample, tuple(eager), compiling), list(eager.values())
    modes = tuple("training" if mode else "inference" for mode in eager)
    mine = attempt(case, expected, "weft", {"fallback": "error", "cache": False})
    if mine.status == "passed":
        return HopVerdict("whole", refused, modes)
    with record_targets() as record:
        helped = attempt(case, expected, "weft", {"fallback": "quiet", "cache": False})
    if helped.status == "passed":
        return HopVerdict("helped", _left(record.fallbacks) or mine.reason, modes)
    identity = attempt(case, expected, identity_backend(), None)
    if identity.status != "passed":
        return HopVerdict("skipped", f"identity backend: {identity.reason}", modes)
    return HopVerdict("wrong" if helped.status == "wrong" else "error", helped.reason, modes)


def _left(fallbacks: Sequence[Any]) -> str:
    return "; ".join(dict.fromkeys(f"{each.target}: {each.reason}" for each in fallbacks))


def prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    """What answers requests for entries."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    entries()

    def handle(request: dict[str, Any], answer: Answer) -> None:
        begun = time.perf_counter()
        dynamic = request["kind"] == "dynamic"
        try:
            verdict = judge_hop(request["name"], request["dtype"], settings["device"], dynamic=dynamic)
        except Exception as error:  # whatever goes wrong is the verdict
            verdict = HopVerdict("error", first_line(error))
        seconds = round(time.perf_counter() - begun, 3)
        told = {"status": verdict.status, "said": verdict.said, "modes": verdict.modes, "seconds": seconds}
        answer({"ok": verdict.ok, **told})

    return handle


if __name__ == "__main__":
    serve_requests(prepare)
