"""Kernels that start before the one ahead of them has ended: they ask for weights, and then wait.

    griddepcontrol.launch_dependents     the next kernel's blocks may come as soon as these leave room
    cp.async.bulk.prefetch.L2 …          the first bytes of every row of weights that this block reads
    griddepcontrol.wait                  the kernel ahead has ended, and what it wrote is there

Between two kernels the memory has nothing to do for some microseconds: as long as it takes to read a small matrix.
What is asked for early comes to the second-level cache, where all of the GPU sees the same: whoever writes it later
changes it there. So it may be any memory, and any kernel may be ahead. Nothing is read before the wait.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from weft.backends.llvm.builder import i64
from weft.backends.nvidia.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.block import do, i32, wide
from weft.backends.nvidia.dialect import RESIDENT, integer, set_integer
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.mma import PACKED, MmaOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import product
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.codegen import KernelCodegen

EARLY = "nvidia.early"
"""On a load of rows: the bytes of each that are asked for before the kernel waits."""
_ASKED = 128 << 10
"""Bytes that a multiprocessor asks for: what the memory brings it in about four microseconds."""
_LINE = 128


def ask_early(kernel: tile.KernelOp, target: NvidiaTarget) -> None:
    """Mark the weights of a product of few rows."""
    programs = product(list(kernel.grid.data))
    resident = integer(kernel, RESIDENT)
    if target.capability < 90 or not resident or not isinstance(programs, int):
        return
    for op in list(kernel.walk()):
        load = op.b.owner if isinstance(op, MmaOp) else None
        if not isinstance(load, tile.LoadOp) or PACKED not in load.attributes or not _row_bytes(load):
            continue
        rows = tile.tile_type(load.out).sizes[1]
        beside = min(resident, ceil(programs / target.multiprocessors))
        asked = max(_ASKED // (beside * rows) // _LINE * _LINE, _LINE)
        set_integer(load, EARLY, min(asked, _row_bytes(load)))


def _row_bytes(load: tile.LoadOp) -> int:
    """What the copy engine can bring of a row of the whole; 0 where it can bring none, or where its length varies."""
    size, sides = pointer_dtype(load).bytes, load.sides
    length = 0 if sides is None or load.strides.data[0] != 1 else sides.data[0]
    steps = [divisor_of(each, load.indices) for each in (load.offset.data[0], load.strides.data[1])]
    if not isinstance(length, int) or any(step * size % WIDEST for step in steps):
        return 0
    return length * size // WIDEST * WIDEST


def emit_early_start(codegen: KernelCodegen) -> None:
    """What a kernel does before it waits for the one ahead of it, and the wait."""
    b = codegen.b
    do(b, "griddepcontrol.launch_dependents;", "")
    for op in codegen.kernel.walk():
        if isinstance(op, tile.LoadOp) and EARLY in op.attributes:
            _ask(codegen, op)
    do(b, "griddepcontrol.wait;", "")


def _ask(codegen: KernelCodegen, load: tile.LoadOp) -> None:
    """Each lane of the first warp, and of others if there are more rows, asks for the first bytes of a row."""
    b, loop, size = codegen.b, load.parent_op(), pointer_dtype(load).bytes
    if isinstance(loop, tile.ForOp):
        codegen.scalars[loop.block.args[0]] = codegen.size(loop.bounds.data[0], loop.indices)
    thread = b.add(b.mul(codegen.threads.warp, i32(WARP)), codegen.threads.lane)
    first, apart = codegen.size(load.offset.data[0], load.indices), codegen.size(load.strides.data[1], load.indices)
    row = wide(b, thread)
    address = b.add(codegen.pointers[load.pointer], b.mul(b.add(first, b.mul(row, apart)), i64(size)))
    with b.when(b.icmp("slt", row, codegen.size(load.extents.data[1], load.indices))):
        do(b, f"cp.async.bulk.prefetch.L2.global [$0], {integer(load, EARLY)};", "l", address)
