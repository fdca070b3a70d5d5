"""What a program is said to take at most, before it runs."""

from __future__ import annotations

import pytest

from weft.ir.types import DType, Tensor, bf16, f32
from weft.lower.steps import Buffer, DotStep, Place, Plan
from weft.ops.layouts import contiguous
from weft.runtime.memory import peak_of, plan_phases


@pytest.mark.parametrize(("dtype", "sums"), [(bf16, 4 * 64 * 128), (f32, 0)])
def test_what_the_library_sums_up_in_f32_is_counted(dtype: DType, sums: int) -> None:
    tensors = [Tensor(dtype, shape) for shape in ((64, 32), (32, 128), (64, 128))]
    places = [Place(number, tensor, contiguous(tensor)) for number, tensor in enumerate(tensors)]
    roles = ("input", "input", "output")
    buffers = tuple(Buffer(role, each.tensor, each.layout) for role, each in zip(roles, places, strict=True))
    plan = Plan("f", buffers, (DotStep(*places, "dot"),), (0, 1), (2,), ())
    held = dtype.bytes * (64 * 32 + 32 * 128 + 64 * 128)
    parts = [plan.steps]
    found = peak_of(plan, {}, parts, plan_phases(plan, {}, parts))
    assert (found.phased, found.whole) == (held + sums, held + sums)
