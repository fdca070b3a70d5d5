"""TMA multicast: the blocks of a cluster bring operands of dots for each other.

    block 0: rows 0…127, columns 0…255        each brings its own rows of a, and to both half of the columns of b:
    block 1: rows 128…255, columns 0…255      32 KB of a stage of 48 are read instead of 48

Programs that are neighbours along an axis of the grid are those of a cluster; what does not depend on that axis is the
same for all of them. They go through their loops together, so these must turn equally often in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.pipeline.operand_copies import Batch, Copy, Operands
from weft.tile import dialect as tile

_SWIZZLED_LINES = 8
"""Lines that TMA mixes: it begins at multiples of them."""


@dataclass(frozen=True)
class Multicast:
    """So many neighbours along an axis of the grid are a cluster."""

    blocks: int
    axis: int


def multicast_operands(kernel: tile.KernelOp, operands: Operands) -> Multicast | None:
    """Divide the copies that blocks of a cluster have in common between them, along the axis that saves most."""
    if kernel.cluster is None or operands.starts_early or not _walks_in_step(kernel, operands):
        return None
    blocks = kernel.cluster.value.data
    axes = [n for n, size in enumerate(kernel.grid.data) if isinstance(size, int) and size and size % blocks == 0]
    batches = list({id(batch): batch for batch in operands.batches.values()}.values())
    saved = {axis: sum(copy.slot.bytes for copy in _shared(batches, axis, blocks)) for axis in axes}
    axis = max(saved, key=saved.__getitem__, default=None)
    if axis is None or not saved[axis]:
        return None
    for batch in batches:
        common = _shared([batch], axis, blocks)
        batch.copies = [_divided(copy, blocks) if copy in common else copy for copy in batch.copies]
    return Multicast(blocks, axis)


def _walks_in_step(kernel: tile.KernelOp, operands: Operands) -> bool:
    """Whether all programs bring the same number of stages, and their numbers are known to be neighbours."""
    if kernel.limit is not None or kernel.counter is not None or kernel.paired:
        return False
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp) and operands.any_in(op)]
    read = any(isinstance(op, tile.NumberOp) for op in kernel.walk())
    return not read and not any(_programs_behind(loop.indices) for loop in loops)


def _shared(batches: Iterable[Batch], axis: int, blocks: int) -> list[Copy]:
    """The copies that are the same along an axis, and of whose lines blocks can have equal parts."""
    copies = [copy for batch in batches for copy in batch.copies if copy.load.pieces == 1]
    whole = [copy for copy in copies if copy.slot.lines % (blocks * _SWIZZLED_LINES) == 0]
    return [copy for copy in whole if axis not in _programs_behind(copy.load.indices)]


def _divided(copy: Copy, blocks: int) -> Copy:
    wide, lines, *others = copy.map.box
    return replace(copy, map=replace(copy.map, box=(wide, lines // blocks, *others)), sharers=blocks)


def _programs_behind(values: Iterable[SSAValue]) -> set[int]:
    """The axes of the grid that values depend on."""
    left, seen, axes = [value.owner for value in values], set[object](), set[int]()
    while left:
        op = left.pop()
        if isinstance(op, tile.ProgramOp):
            axes.add(op.axis.value.data)
        elif isinstance(op, Operation) and op not in seen:
            seen.add(op)
            left += [operand.owner for operand in op.operands]
    return axes
