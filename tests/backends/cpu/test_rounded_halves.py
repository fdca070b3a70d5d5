"""What is rounded to a half stays so, also where the processor has arithmetic of halves."""

from __future__ import annotations

import re
from typing import Any

import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import CpuTarget, compile_assembly
from weft.backends.llvm.builder import Module
from weft.ir.types import Tensor, f16
from weft.testing.kernels import Trial, group_of

TARGETS = [
    CpuTarget("x86_64-unknown-linux-gnu", "emeraldrapids", ""),
    CpuTarget("aarch64-unknown-linux-gnu", "neoverse-n1", ""),
]


def rounded_twice(b: Any, x: Any, y: Any) -> Any:
    return b.add(b.reduce_precision(b.mul(x, y)), y)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
def test_a_product_is_not_fused_with_a_sum_behind_its_rounding(target: CpuTarget) -> None:
    trial = Trial.of(group_of([Tensor(f16, (64, 64)), Tensor(f16, (64, 64))], rounded_twice), "rounded")
    module = Module(target.triple)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, target)
    assembly = compile_assembly(str(module), target)
    assert not re.findall(r"vfn?m(?:add|sub)\w+[ps]h\b|fml[as]\s+v\d+\.[48]h|fmadd\s+h", assembly)
