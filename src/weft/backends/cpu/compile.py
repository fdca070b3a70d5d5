"""The kernels of a plan → LLVM IR, to become one object file."""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Module
from weft.tile import dialect as tile


def emit_kernels(kernels: Mapping[str, tile.KernelOp], target: CpuTarget) -> str:
    """One module with a function for each kernel."""
    module = Module(target.triple)
    for kernel in kernels.values():
        emit_kernel(module, kernel, target)
    return str(module)
