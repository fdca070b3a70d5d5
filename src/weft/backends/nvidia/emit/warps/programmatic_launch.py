"""Programmatic dependent launch as LLVM code: `griddepcontrol`."""

from __future__ import annotations

from weft.backends.llvm.builder import Function
from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.emit.block import do, i32
from weft.backends.nvidia.ir.programmatic_launch import FOLLOWS
from weft.ir.expr import product
from weft.tile import dialect as tile

_LAUNCH_DEPENDENTS = "griddepcontrol.launch_dependents;"
_MOST_THREADS = 160 * 2048
"""That a GPU has at once."""


def launch_dependents(b: Function, kernel: tile.KernelOp, launch: Launch) -> None:
    """Let the blocks of the next kernel come from the first instruction on, if a kernel is not a program's first."""
    if FOLLOWS in kernel.attributes:
        _let_next_come(b, kernel, launch)


def grid_dependency_wait(b: Function) -> None:
    """Wait until the kernel ahead has ended, then let the next one come, if it was not let before."""
    do(b, f"griddepcontrol.wait; {_LAUNCH_DEPENDENTS}", "")


def wait_before_program(b: Function, kernel: tile.KernelOp, launch: Launch) -> None:
    """The same at the begin of a program that all warps of a block carry out together."""
    do(b, "griddepcontrol.wait;", "")
    if FOLLOWS not in kernel.attributes:
        _let_next_come(b, kernel, launch)


def _let_next_come(b: Function, kernel: tile.KernelOp, launch: Launch) -> None:
    """The next kernel comes when all blocks have let it or ended. Those that end before the last ones begin need not
    say so, which takes time: a tenth of a layer norm of 8192 rows, a block each."""
    at_once, programs = _MOST_THREADS // launch.threads, product(list(kernel.grid.data))
    if isinstance(programs, int) and programs <= at_once:
        do(b, _LAUNCH_DEPENDENTS, "")
        return
    block, blocks = (b.call(f"llvm.nvvm.read.ptx.sreg.{name}.x", "i32") for name in ("ctaid", "nctaid"))
    is_last = b.icmp("ule", b.sub(blocks, block), i32(at_once))
    do(b, f"@$0 {_LAUNCH_DEPENDENTS}", "b", is_last)
