"""Programmatic dependent launch as LLVM code: `griddepcontrol`."""

from __future__ import annotations

from weft.backends.llvm.builder import Function
from weft.backends.nvidia.emit.block import do
from weft.backends.nvidia.ir.programmatic_launch import FOLLOWS
from weft.tile import dialect as tile


def launch_dependents(b: Function, kernel: tile.KernelOp) -> None:
    """Let the blocks of the next kernel come from the first instruction on, if a kernel is not a program's first."""
    if FOLLOWS in kernel.attributes:
        do(b, "griddepcontrol.launch_dependents;", "")


def grid_dependency_wait(b: Function) -> None:
    """Wait until the kernel ahead has ended, then let the next one come, if it was not let before."""
    do(b, "griddepcontrol.wait; griddepcontrol.launch_dependents;", "")
