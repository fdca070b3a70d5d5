"""A fixed part of PyTorch's operator database through the backend, and its core targets native.

It is every 16th operator, with the slow tests every 8th. The whole of it is `weft conform opinfo`.
"""

from __future__ import annotations

import pytest

from tests.sampling import every
from weft.testing.conformance.conformance import run_opinfo

PARTS = 4
EVERY = 8 * PARTS


@pytest.mark.parametrize("part", every(2, range(PARTS)))
def test_a_part_of_opinfo_is_right(part: int) -> None:
    report = run_opinfo("weft", shard=(1 + 8 * part, EVERY), jobs=1)
    assert report.ok, str(report)
    assert len(report.having("passed")) > 20


def test_core_targets_are_native() -> None:
    ops = ["add", "sum", "softmax", "nn.functional.layer_norm", "sort", "gather", "nn.functional.conv2d"]
    report = run_opinfo("weft", ops=ops, strict=True, samples=1, jobs=1)
    assert report.ok, str(report)
    assert report.core_targets and set(report.core_targets) == set(report.native_targets)
