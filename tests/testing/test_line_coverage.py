"""How much of the code of models knows its source line."""

from __future__ import annotations

import pytest
import torch

from weft.backends.nvidia.target import target_named
from weft.testing.gpu.corpus import traced
from weft.testing.line_coverage import Coverage, cpu_coverage, model_functions, nvidia_coverage
from weft.testing.models import FULL_SIZE, SMALL

HOPPER = target_named("sm_90a")


def check(coverage: Coverage) -> None:
    assert coverage.tile_ops.all > 100 and coverage.instructions.all > 1000
    assert coverage.tile_ops.known >= 0.99 * coverage.tile_ops.all
    assert coverage.instructions.known >= 0.95 * coverage.instructions.all


def test_the_code_of_a_decoder_has_lines() -> None:
    case = SMALL["llama"]
    model = case.build()
    with torch.no_grad():
        (function,) = traced(lambda compile: compile(model)(**case.inputs(0)))
    check(cpu_coverage(function.clone()))
    check(nvidia_coverage(function, HOPPER))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minilm", "llama_8"])
def test_the_code_of_models_has_lines(name: str) -> None:
    assert name in FULL_SIZE
    for function in model_functions(name):
        check(cpu_coverage(function))
    for function in model_functions(name, torch.bfloat16):
        check(nvidia_coverage(function, HOPPER))


@pytest.mark.slow
def test_the_code_of_gradients_has_lines() -> None:
    case = SMALL["llama"]
    model = case.train(case.build())
    functions = traced(lambda compile: case.loss(compile(model)(**case.inputs(0))).backward())
    assert len(functions) == 2
    for function in functions:
        check(cpu_coverage(function.clone()))
        check(nvidia_coverage(function, HOPPER))
