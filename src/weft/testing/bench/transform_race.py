"""Runs a case of `weft bench func`: torch.func in eager and under Inductor, and Weft, in turns, judged by float64.

Weft runs twice: as `weft.func`, which is the one that counts, and as `torch.func` inside of
`torch.compile(backend="weft")`. Whoever fails is reported with the reason, and the others are measured without it.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

import weft.func
from weft.config import compiling_anew
from weft.runtime.record import recording
from weft.testing.bench.benchmark import (
    COMPILED,
    EAGER,
    EXACT,
    INDUCTOR,
    WEFT,
    Call,
    Compile,
    Contender,
    Limits,
    Progress,
    Race,
    cpp_compiler,
    interleave,
    own_code,
)
from weft.testing.bench.benchmark_case import CaseResult, Started, disagreements, snapshot
from weft.testing.bench.benchmark_transforms import SUITE, Inputs, TransformCase
from weft.testing.comparison import compare, widen
from weft.testing.devices import Device

log = logging.getLogger("weft")


def run_transform_case(
    case: TransformCase,
    device: Device,
    limits: Limits | None = None,
    progress: Progress | None = None,
    seconds_of: Callable[[Call], float] | None = None,
) -> CaseResult:
    """Let each contender make its first call, judge what it returned, and measure those that can go on."""
    torch.compiler.reset()
    gc.collect()
    given = case.inputs()
    inputs = Inputs(_on(device, given.args), _on(device, given.held))
    started, fallbacks = Started(Race()), 0
    with torch.no_grad():
        for contender in transform_contenders(device):
            with recording() as records, compiling_anew():
                started.first_call_of(contender, lambda c: _call(case, c, inputs), progress)
            if contender.name == WEFT:  # its own transformations do not come through AOTAutograd
                started.backend_seconds[WEFT] = sum(took for record in records for took in record.seconds.values())
            fallbacks += sum(len(record.fallbacks) for record in records)
            left = next((record.error for record in records if record.error is not None), None)
            if left is not None and started.race.first_calls.pop(contender.name, None) is not None:
                started.race.failures[contender.name] = f"left a graph to torch: {left}"
        wrong, errors = _judged(started.outputs, _exact(case, inputs))
        started.outputs.clear()
        race = interleave(started.able, limits, progress, started.race, seconds_of or device.wall_seconds)
    return CaseResult(
        SUITE, case.name, race, started.backend_seconds, wrong, fallbacks=fallbacks, errors_of_float64=errors
    )


def transform_contenders(device: Device) -> list[Contender]:
    """Those that can run here: Inductor needs a C++ compiler on the CPU, and what it needs on a GPU it says itself."""

    def compiled(backend: str) -> Compile:
        return lambda function: torch.compile(own_code(function), backend=backend)

    found = [Contender(EAGER, lambda function: function)]
    if device.name != "cpu" or cpp_compiler() is not None:
        found.append(Contender(INDUCTOR, compiled(INDUCTOR)))
    return [*found, Contender(COMPILED, compiled("weft")), Contender(WEFT, lambda function: function)]


def _call(case: TransformCase, contender: Contender, inputs: Inputs) -> Call:
    namespace = weft.func if contender.name == WEFT else torch.func
    run = contender.compile(case.transform(namespace, *inputs.held))
    return lambda: run(*inputs.args)


def _on(device: Device, values: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device.name), values)


def _exact(case: TransformCase, inputs: Inputs) -> list[Tensor] | None:
    """The results in float64; None where they cannot be had, for want of memory say."""
    try:
        return snapshot(_call(case, Contender(EAGER, own_code), Inputs(widen(inputs.args), widen(inputs.held)))())
    except RuntimeError as error:
        log.info("%s has no results in float64: %s", case.name, error)
        return None


def _judged(outputs: dict[str, list[Tensor]], exact: list[Tensor] | None) -> tuple[dict[str, str], dict[str, float]]:
    """Who is farther from float64 than twice eager, and how far each is, as a share of the largest value.

    Where eager or float64 failed, the other is what a bound is kept to.
    """
    if exact is None:
        return disagreements(outputs), {}
    if EAGER not in outputs:
        wrong = disagreements({**outputs, EXACT: [leaf.float() for leaf in exact]}, judge=EXACT)
        return wrong, {}
    wrong: dict[str, str] = {}
    errors: dict[str, float] = {}
    for name, found in outputs.items():
        verdict = compare(found, outputs[EAGER], exact, together=True)
        errors[name] = verdict.error
        if not verdict.ok:
            wrong[name] = str(verdict).partition("\n")[2].strip() or str(verdict)
    return wrong, errors
