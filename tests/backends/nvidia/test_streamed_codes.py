"""Products of one row or two whose weights are codes that a copy engine brings: run as PTX with mbarriers."""

from __future__ import annotations

from typing import Any

import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.compile import annotate
from weft.backends.nvidia.streaming import StreamOp
from weft.backends.nvidia.target import target_named
from weft.ir.types import bf16, f8e4m3, f16, f32, u8

from .test_codes import expected, operands, trial_of
from .test_streamed_weights import all_brought, run  # noqa: F401  (a fixture)
from .test_tensor_cores import agree

CASES = [
    # rows, columns, depth, form, group, type of factors, zeros, type of the product; blocks
    ((1, 40, 4096, "int4", 128, bf16, False, bf16), 2),  # a ring goes round, over several programs
    ((2, 33, 2048, "int4", 64, f16, False, f16), 2),
    ((1, 20, 2048, "int4", 128, bf16, True, bf16), 1),
    ((1, 40, 4096, "e2m1", 32, u8, False, bf16), 2),
    ((1, 16, 2048, "e2m1", 16, f8e4m3, False, bf16), 1),
    ((1, 24, 1024, "int8", 32, f32, False, bf16), 1),
    ((2, 16, 1024, "e4m3", 128, f32, False, f16), 1),
]


@pytest.mark.usefixtures("all_brought")
@pytest.mark.parametrize(("case", "blocks"), CASES, ids=str)
def test_results(case: tuple[Any, ...], blocks: int) -> None:
    *_, form, group, _, _, dtype = case
    arrays = operands(*case)
    agree(run(trial_of(arrays, form, dtype), arrays, blocks), expected(arrays, form, group, dtype))


@pytest.mark.usefixtures("all_brought")
@pytest.mark.parametrize(
    ("rows", "depth", "group", "brought"),
    [(1, 4096, 128, True), (2, 4096, 32, True), (3, 4096, 128, False), (1, 4160, 32, False), (1, 4096, 4096, False)],
)
def test_codes_and_factors_come_in_whole_pieces(rows: int, depth: int, group: int, brought: bool) -> None:
    arrays = operands(rows, 64, depth, "int4", group, bf16, False, bf16)
    kernel, _ = annotate(trial_of(arrays, "int4", bf16).lowered.calls[0].kernel.op, target_named("sm_90a"))
    assert any(isinstance(op, StreamOp) for op in kernel.walk()) == brought
