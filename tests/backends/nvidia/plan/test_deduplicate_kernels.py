"""Kernels that are equal but for their names become one, and those that are not stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from xdsl.dialects.builtin import StringAttr

from weft.backends.nvidia.plan.deduplicate_kernels import deduplicate_kernels
from weft.ir.attributes import to_attribute
from weft.lower.plan import Planned
from weft.lower.steps import KernelStep

from ..row_kernels import planned


def twice() -> Planned:
    """A plan whose first kernel is there again under another name, for a step of its own."""
    found = planned(lambda x: (torch.softmax(x, -1), x.sum(0)), (64, 512))
    first = next(step for step in found.plan.steps if isinstance(step, KernelStep))
    found.kernels["again"] = again = found.kernels[first.function].clone()
    again.attributes["sym_name"] = StringAttr("again")
    found.sources["again"] = {to_attribute("there")}  # type: ignore[arg-type]
    found.plan = replace(found.plan, steps=(*found.plan.steps, replace(first, function="again")))
    return found


def functions(found: Planned) -> list[str]:
    return [step.function for step in found.plan.steps if isinstance(step, KernelStep)]


def test_an_equal_kernel_is_compiled_once() -> None:
    found = twice()
    kernels, names = list(found.kernels), functions(found)
    deduplicate_kernels(found)
    assert functions(found) == [*names[:-1], names[0]]
    assert list(found.kernels) == kernels[:-1] and len(found.kernels) > 1
    assert "again" not in found.sources and to_attribute("there") in found.sources[names[0]]


@pytest.mark.parametrize("where", ["kernel", "op"])
def test_what_differs_in_an_attribute_stays_apart(where: str) -> None:
    found = twice()
    changed = found.kernels["again"] if where == "kernel" else found.kernels["again"].block.ops.first
    assert changed is not None
    changed.attributes["nvidia.fixed"] = to_attribute((0,))
    plan, kernels = found.plan, dict(found.kernels)
    deduplicate_kernels(found)
    assert found.plan == plan and found.kernels == kernels
