"""What holds for every op that the CPU backend makes code for: generated from the ops' samples."""

from __future__ import annotations

import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import ShapeError
from weft.ops.base import REGISTRY, Elementwise, Movement, OpSpec, Reduction, Scan, Scatter
from weft.testing.kernels import CpuModule, Trial
from weft.testing.op_cases import OpCase, op_cases

KINDS = (Elementwise, Movement, Reduction, Scan, Scatter)
STRUCTURED = ("attention", "dot", "sort", "topk")
OPS = [spec for spec in REGISTRY if issubclass(spec.cls, KINDS) or spec.name in STRUCTURED]
# All elementwise ops are one and the same to the code that walks symbolic sizes.
DYNAMIC = [
    spec for spec in OPS if not issubclass(spec.cls, Elementwise) or spec.name in ("add", "exp", "where", "cast")
]


def check(trials: list[tuple[OpCase, Trial]]) -> None:
    module = CpuModule([trial for _, trial in trials])
    found = [case.complaint(module.run(trial, case.arrays(), case.symbols)) for case, trial in trials]
    assert not (wrong := [text for text in found if text]), "\n".join(wrong)


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_code_agrees_with_float64(spec: OpSpec) -> None:
    check([(case, case.trial()) for case in op_cases(spec)])


@pytest.mark.parametrize("spec", DYNAMIC, ids=lambda spec: spec.name)
def test_code_for_symbolic_sizes_agrees_with_float64(spec: OpSpec) -> None:
    trials: list[tuple[OpCase, Trial]] = []
    for case in op_cases(spec, dynamic=True):
        if case.dtype != case.sample.dtypes[0]:
            continue
        try:
            trials.append((case, case.trial()))
        except ShapeError:
            # Parameters like the shape of a reshape do not change with the operand's sizes.
            continue
    if not trials:
        pytest.skip("no sample of the op can have symbolic sizes")
    check(trials)
