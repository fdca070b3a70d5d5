"""The code for other processors: the registers it uses, and that it calls nothing the JIT cannot find."""

from __future__ import annotations

import re

import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.target import CpuTarget, compile_assembly, target_for
from weft.errors import WeftError
from weft.ir.types import bf16, f16
from weft.ops.base import REGISTRY
from weft.testing.op_cases import op_cases

LINUX = "x86_64-unknown-linux-gnu"
# Where LLVM has turned moves or arithmetic of narrow floats into calls.
NARROW = ("add", "argmax", "convolution", "dot", "fmax", "fmod", "logcumsumexp", "max_pool", "resize_nearest", "sort")
IN_EVERY_PROCESS = {"memcpy", "memset", "memmove"}


def x86(cpu: str, features: str = "") -> CpuTarget:
    return CpuTarget(LINUX, cpu, features)


@pytest.mark.parametrize(
    ("bits", "registers", "cpus"),
    [
        (128, 16, ["x86-64", "x86-64-v2", "nehalem"]),
        (256, 16, ["sandybridge", "haswell", "x86-64-v3", "znver3", "alderlake"]),
        (512, 32, ["skylake-avx512", "cascadelake", "sapphirerapids", "graniterapids", "x86-64-v4", "znver4"]),
    ],
)
def test_registers_of_named_processors(bits: int, registers: int, cpus: list[str]) -> None:
    assert {cpu: (x86(cpu).vector_bits, x86(cpu).registers) for cpu in cpus} == dict.fromkeys(cpus, (bits, registers))


def test_features_override_the_name() -> None:
    """As in a virtual machine that hides some of its processor."""
    assert x86("sapphirerapids", "-avx512f").vector_bits == 256
    assert x86("x86-64", "+avx2,+fma,+f16c").lacks == frozenset()


def test_what_there_are_no_instructions_for() -> None:
    assert x86("x86-64-v2").lacks == {"f16", "fma"}
    assert x86("ivybridge").lacks == {"fma"}
    assert x86("haswell").lacks == x86("cascadelake").lacks == frozenset()
    assert CpuTarget("aarch64-unknown-linux-gnu", "neoverse-n1", "").lacks == frozenset()


@pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell", "skylake-avx512"])
def test_narrow_floats_need_no_library(cpu: str) -> None:
    """`__truncsfbf2` and its kind exist in no process the JIT can look into."""
    specs = [spec for spec in REGISTRY if spec.name in NARROW]
    calls = [
        call
        for spec in specs
        for case in op_cases(spec)
        if case.dtype in (bf16, f16)
        for call in case.trial().lowered.calls
    ]
    kernels = {call.kernel.op.sym_name.data: call.kernel.op for call in calls}
    assembly = compile_assembly(emit_kernels(kernels, x86(cpu)), x86(cpu))
    called = {name.removesuffix("@PLT") for name in re.findall(r"^\s+callq?\s+(\S+)", assembly, re.MULTILINE)}
    assert {name for name in called if not name.startswith((".Lweft.", "weft."))} <= IN_EVERY_PROCESS


def test_a_name_is_needed() -> None:
    with pytest.raises(WeftError, match="LLVM knows no processor called ''"):
        target_for("")
