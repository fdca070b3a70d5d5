"""The kernels of a plan → LLVM IR, to become one object file."""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Module
from weft.backends.llvm.debug_lines import DebugLines
from weft.ir.locations import inherit_locations
from weft.tile import dialect as tile


def emit_kernels(kernels: Mapping[str, tile.KernelOp], target: CpuTarget, *, debug_lines: bool = False) -> str:
    """One module with a function for each kernel; with `debug_lines` it says which line each instruction is of."""
    module = Module(target.triple, debug=DebugLines("LineTablesOnly") if debug_lines else None)
    for kernel in kernels.values():
        if debug_lines:
            inherit_locations(kernel)
        emit_kernel(module, kernel, target)
    return str(module)
