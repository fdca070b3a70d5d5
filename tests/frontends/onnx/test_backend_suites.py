"""A sample of ONNX's own backend tests; `weft conform onnx` runs them all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

from weft.testing.conformance.onnx_cases import SUITES, _differing, cases, judge

EVERY = {"node": 67, "simple": 6, "pytorch-converted": 16, "pytorch-operator": 7}
"""One case of so many is run."""


@pytest.mark.parametrize("suite", SUITES)
def test_cases_of_a_suite_pass_or_are_refused_and_none_is_wrong(suite: str) -> None:
    chosen = sorted(cases(suite))[:: EVERY[suite]]
    verdicts = {name: judge(suite, name) for name in chosen}
    failed = {name: verdict for name, verdict in verdicts.items() if verdict.status != "passed"}
    assert {verdict.status for verdict in failed.values()} <= {"refused", "random", "rounding"}, failed
    assert len(failed) <= len(chosen) * 0.1, failed


def test_what_the_suite_rounds_on_the_way_is_not_wrong() -> None:
    case = SimpleNamespace(model=None)
    exact = np.array([1.0, 0.5], np.float16)
    near, far = exact + np.array([0, 5e-4], np.float16), exact + np.array([0, 4e-3], np.float16)
    verdicts = [_differing(case, [exact], [found], "").status for found in (near, far, exact.astype(np.float32))]
    assert verdicts == ["rounding", "wrong", "wrong"]
