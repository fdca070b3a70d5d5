"""Kernels of the ops' samples and of the benchmark's memory-bound suite assemble, without spills, on all targets."""

from __future__ import annotations

import pytest

from tests.sampling import every
from weft.backends.nvidia.target import target_named
from weft.ops.base import OpSpec
from weft.pipelines import compile_kernels
from weft.testing.gpu.case import GpuCase
from weft.testing.gpu.corpus import device_code, generated_ops, op_kernels, suite_functions
from weft.testing.gpu.memory import memory_cases

from ..ptxas import Assembly, assemble, needs_ptxas, parse

ARCHES = ("sm_80", "sm_90a")
OTHER_ARCHES = ("sm_86", "sm_89", "sm_100a", "sm_120a")
MOST_REGISTERS = 128
"""Two blocks of 256 threads, or more of fewer, still fit a multiprocessor."""
HEAVY = {"resize_cubic": 168, "lgamma": 200, "digamma": 200}
"""Ops that hold more at once: sixteen places with a weight for each, f64 for several elements."""
FEW = ("add", "exp", "erf", "sum", "max", "cumsum", "transpose", "cast")


def complaints(found: Assembly, most: int = MOST_REGISTERS) -> list[str]:
    if found.error:
        return [found.error]
    bad = [
        f"{kernel.name}: {kernel.registers} registers, {kernel.spilled} bytes spilled, a stack of {kernel.stack}"
        for kernel in found.kernels.values()
        if kernel.spilled or kernel.registers > most
    ]
    return [*bad, *found.advice]


def test_what_ptxas_says_is_read() -> None:
    said = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 16 bytes stack, 2048 bytes smem, 380 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 9 registers, used 0 barriers
"""
    first, second = parse(said).values()
    assert (first.name, first.registers, first.stack, first.spilled, first.shared) == ("first", 32, 16, 12, 2048)
    assert (second.registers, second.spilled, second.shared) == (9, 0, 0)
    assert complaints(Assembly({"first": first, "second": second}, ())) == [
        "first: 32 registers, 12 bytes spilled, a stack of 16"
    ]


@needs_ptxas
def test_a_wrong_program_is_refused_with_its_reason() -> None:
    assert "syntax error" in assemble(".version 8.0\n.target sm_80\nnonsense", "sm_80").error


@needs_ptxas
@pytest.mark.parametrize("spec", every(3, generated_ops()), ids=lambda spec: spec.name)
def test_kernels_of_ops_assemble(spec: OpSpec) -> None:
    kernels = op_kernels(spec)
    most = HEAVY.get(spec.name, MOST_REGISTERS)
    for arch in ARCHES:
        code = compile_kernels(kernels, target_named(arch))
        assert not (bad := complaints(assemble(code.ptx, arch), most)), "\n".join(bad)


@needs_ptxas
@pytest.mark.parametrize("arch", OTHER_ARCHES)
def test_kernels_of_some_ops_assemble_elsewhere(arch: str) -> None:
    kernels = {name: k for spec in generated_ops() if spec.name in FEW for name, k in op_kernels(spec).items()}
    code = compile_kernels(kernels, target_named(arch))
    assert not (bad := complaints(assemble(code.ptx, arch))), "\n".join(bad)


@needs_ptxas
@pytest.mark.parametrize("case", every(3, memory_cases()), ids=lambda case: case.name)
def test_kernels_of_the_benchmark_assemble(case: GpuCase) -> None:
    functions = suite_functions(case)
    assert functions
    for arch in ARCHES:
        for code in [device_code(function.clone(), target_named(arch)) for function in functions]:
            if code.ptx:
                assert not (bad := complaints(assemble(code.ptx, arch))), "\n".join(bad)
