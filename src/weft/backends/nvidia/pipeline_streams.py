"""Split a kernel that walks its rows in blocks into roles: one that brings the next blocks, others that compute.

tile.for %c = 0 to 9000 by 4096 (%s) {     nvidia.stream {
  %x = tile.load %a[%p * 9000 + %c]          tile.for %p … { tile.for %c … { nvidia.acquire ; nvidia.copy … } … }
  %t = tile.map add(%s, %x)           →    } {
  tile.yield %t }                            tile.for %p … { tile.for %c … { nvidia.wait ; %x = nvidia.read 0 ; … } …
…                                              … tile.store %y[%p], %r } }
tile.store %y[%p], %r

As in `pipeline_rows`, blocks of threads are persistent and the next bytes are on their way all the time, also while a
row's last results are computed; but a row need not be held, so that no cluster has to share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from weft.backends.nvidia.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.assign_layouts import assign_layouts
from weft.backends.nvidia.asynchronous import AcquireOp, BlockNumberOp, CommitOp, ReleaseOp, WaitOp
from weft.backends.nvidia.dialect import LAYOUTS, RESIDENT, WARPS, ConvertOp, integer, layout_of, set_integer
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.peel_loops import peel_loops
from weft.backends.nvidia.pipeline_rows import Streamed, programs_of
from weft.backends.nvidia.streaming import ALIGNMENT, CopyOp, PieceType, ReadOp, StreamOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import product
from weft.tile import dialect as tile

_RESIDENT = 4
"""Blocks of a multiprocessor at most: while one finishes a row, others go on."""
_REGISTERS_BESIDE = 24
"""What a thread needs beside what its loops carry."""
_MOST_STAGES = 8
_LEAST_TURNS = 2
"""Programs of a block from which on it pays to stay."""
_RESERVED = 8192
"""Shared memory that is left to reductions."""
_SIMPLE = (tile.LoadOp, tile.StoreOp, tile.MapOp, tile.ReduceOp, tile.ConstantOp, tile.PositionOp, tile.GatherOp)


@dataclass(frozen=True)
class _Stage:
    """Loads that come together: those of a turn of a loop."""

    loop: tile.ForOp
    loads: list[tile.LoadOp]


def pipeline_streams(kernel: tile.KernelOp, target: NvidiaTarget) -> Streamed | None:
    """A kernel with layouts and roles, if it is one of blocks of columns in loops."""
    if target.capability < 90 or not kernel.grid.data or kernel.serial is not None or not _is_simple(kernel):
        return None
    copy = kernel.clone()
    loops = peel_loops(copy)
    stages = None if not loops else _stages(copy, loops)
    if not stages:
        return None
    assign_layouts(copy)
    if any(isinstance(op, ConvertOp) for op in copy.walk()):
        return None
    resident = _resident(copy, target)
    programs = product(list(kernel.grid.data))
    if isinstance(programs, int) and programs < _LEAST_TURNS * resident * target.multiprocessors:
        return None
    pieces = [PieceType.of(size, size, size, pointer_dtype(op)) for op in stages[0].loads for size in [_side(op)]]
    bytes_of_stage = sum(piece.bytes for piece in pieces) + 16
    count = min(_MOST_STAGES, (target.shared_per_block // resident - _RESERVED) // bytes_of_stage)
    if count < 2:
        return None
    _split(copy, stages, pieces, count)
    set_integer(copy, RESIDENT, resident)
    threads = WARP * (integer(copy, WARPS) + 1)
    # As `emit_streaming` lays it out: the ring, then barriers for what is kept and what crosses blocks.
    return Streamed(copy, threads, sum(map(_up, (count * bytes_of_stage, 16, 16))), 1)


def _resident(kernel: tile.KernelOp, target: NvidiaTarget) -> int:
    """How many blocks a multiprocessor has registers for."""
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    carried = max(sum(layout_of(value).count for value in loop.results) for loop in loops)
    threads = WARP * (integer(kernel, WARPS) + 1)
    return max(1, min(_RESIDENT, target.registers // (threads * (carried + _REGISTERS_BESIDE))))


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _side(op: tile.LoadOp) -> int:
    return tile.tile_type(op.out).sizes[0]


def _is_simple(kernel: tile.KernelOp) -> bool:
    """Whether a kernel has loops at its top, nothing in them that needs all threads, and does not read what it
    writes."""
    top = (*_SIMPLE, tile.AddExponentialsOp, tile.ProgramOp, tile.ReturnOp, tile.ForOp)
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    inner = [op for loop in loops for op in loop.block.ops]
    across = (tile.ReduceOp, tile.ForOp)
    simple = (*_SIMPLE, tile.AddExponentialsOp, tile.YieldOp)
    if not all(isinstance(op, top) for op in kernel.block.ops) or not all(isinstance(op, simple) for op in inner):
        return False
    if not loops or any(isinstance(op, across) for op in inner):
        return False
    written = {op.pointer for op in kernel.walk() if isinstance(op, tile.StoreOp)}
    return not any(op.pointer in written for op in kernel.walk() if isinstance(op, tile.LoadOp | tile.GatherOp))


def _stages(kernel: tile.KernelOp, loops: Sequence[tile.ForOp]) -> list[_Stage] | None:
    """What is brought, in order; None if a loop brings nothing, or others something else."""
    numbers: set[SSAValue] = {op.out for op in kernel.block.ops if isinstance(op, tile.ProgramOp)}
    found = [
        _Stage(loop, [op for op in loop.block.ops if isinstance(op, tile.LoadOp) and _is_piece(op, numbers)])
        for loop in loops
    ]
    kinds = {tuple((_side(op), pointer_dtype(op)) for op in stage.loads) for stage in found}
    return found if len(kinds) == 1 and found[0].loads else None


def _is_piece(op: tile.LoadOp, numbers: set[SSAValue]) -> bool:
    """Whether a load reads one piece of memory that the copy engine can move, another one in each program."""
    sizes, size = tile.tile_type(op.out).sizes, pointer_dtype(op).bytes
    if len(sizes) != 1 or sizes[0] == 1 or op.strides.data != (1,) or not numbers & set(op.indices):
        return False
    extent, step = op.extents.data[0], divisor_of(op.offset.data[0], op.indices)
    return isinstance(extent, int) and extent * size % WIDEST == 0 and step * size % WIDEST == 0


def _split(kernel: tile.KernelOp, stages: Sequence[_Stage], pieces: Sequence[PieceType], count: int) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    first, number = BlockNumberOp.make("number"), BlockNumberOp.make("count")
    block.insert_ops_before([first, number], original[0])
    programs, mapping = programs_of(kernel, first.out, number.out)
    _produce(programs.block, stages, mapping)
    producer = Block([programs])
    for stage in stages:
        _consume(stage)
    programs, mapping = programs_of(kernel, first.out, number.out)
    for op in original:
        if not isinstance(op, tile.ProgramOp):
            programs.block.add_op(op.clone(mapping))
    programs.block.add_op(tile.YieldOp.create())
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    block.insert_op_after(StreamOp.make(count, pieces, [], 0, producer, Block([programs])), number)


def _produce(block: Block, stages: Sequence[_Stage], mapping: dict[SSAValue, SSAValue]) -> None:
    """Bring all stages of a program."""
    for stage in stages:
        loop = tile.ForOp.make(stage.loop.bounds, [], [])
        mapping[stage.loop.block.args[0]] = loop.block.args[0]
        moved = sum(_extent(op) * pointer_dtype(op).bytes for op in stage.loads)
        loop.block.add_op(AcquireOp.expecting(moved))
        for number, op in enumerate(stage.loads):
            indices = [mapping.get(index, index) for index in op.indices]
            made = CopyOp.make(op.pointer, indices, number, op.offset, elements=_extent(op))
            loop.block.add_op(made)
        loop.block.add_ops([CommitOp.of(), tile.YieldOp.create()])
        block.add_op(loop)
    block.add_op(tile.YieldOp.create())


def _consume(stage: _Stage) -> None:
    """Let the loads of a stage be reads of its slots."""
    block = stage.loads[0].parent_block()
    assert block is not None
    block.insert_op_before(WaitOp.of(), stage.loads[0])
    for number, op in enumerate(stage.loads):
        read = ReadOp.make(number, tile.Sizes((1,)), op.out.type, extents=op.extents)
        read.attributes[LAYOUTS] = op.attributes[LAYOUTS]
        block.insert_op_before(read, op)
        if op is stage.loads[-1]:
            block.insert_op_before(ReleaseOp.of(), op)
        op.out.replace_all_uses_with(read.out)
        op.detach()
        op.erase()


def _extent(op: tile.LoadOp) -> int:
    extent = op.extents.data[0]
    assert isinstance(extent, int)
    return extent
