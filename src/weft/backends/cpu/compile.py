"""A plan and its kernels → one object file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.launcher import emit_launcher
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Module
from weft.lower.plan import CallStep, Plan, Step
from weft.tile import dialect as tile


def segments(plan: Plan) -> Iterator[tuple[Step, ...]]:
    """The plan's steps, cut at calls to the framework: runs of kernels, and calls alone."""
    run: list[Step] = []
    for step in plan.steps:
        if isinstance(step, CallStep):
            if run:
                yield tuple(run)
                run = []
            yield (step,)
        else:
            run.append(step)
    if run:
        yield tuple(run)


def launcher_name(number: int) -> str:
    return f"weft_launch_{number}"


def emit_program(plan: Plan, kernels: Mapping[str, tile.KernelOp], target: CpuTarget) -> str:
    """The LLVM IR of a program: its kernels, and a launcher for each run of them."""
    module = Module(target.triple)
    for kernel in kernels.values():
        emit_kernel(module, kernel, target)
    for number, steps in enumerate(segments(plan)):
        if not isinstance(steps[0], CallStep):
            emit_launcher(module, plan, launcher_name(number), steps)
    for name in kernels:
        module.declarations.pop(name, None)
    return str(module)
