"""TMA pipelining of whole rows: a producer warp brings those of the next programs, other warps compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.dialect import LAYOUTS, RESIDENT, ConvertOp, layout_of, set_integer, set_launch
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp, Reduction
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused, adopt, has_tma
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, WaitOp
from weft.backends.nvidia.ir.row_streams import ALIGNMENT, CROSSES, BulkCopyOp, ReadOp, StreamOp, WaitKeptOp
from weft.backends.nvidia.ir.shared_bytes import crossing_bytes
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp
from weft.backends.nvidia.layout.assign_layouts import assign_layouts
from weft.backends.nvidia.pipeline.row_pieces import Row, is_fixed, is_piece, row_of, strides_of
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import Size, floordiv, mod, product, substitute, symbol
from weft.tile import dialect as tile

_LEAST_BYTES = 8192
"""What a stage brings at least: a copy and its barriers cost about as much as so many bytes."""
_LEAST_ELEMENTS = 16384
"""Of a program's rows: of shorter ones a multiprocessor holds so many at once that some always wait for memory."""
_LEAST_TURNS = 3
"""Programs of a block from which on it pays to bring them early."""
_HELD = 64
"""Elements of its rows that a thread holds at most."""
_MOST_WARPS, _BLOCKS = 8, (1, 2, 4, 8)
_WIDE = 4
"""Blocks of a cluster that do better with twice the warps, and half as much in each thread: so it was measured."""
_MOST_STAGES = 4
_REGISTERS_BESIDE = 40
"""What a thread needs beside the rows it holds."""
_MOST_KEPT = 65536


@dataclass(frozen=True)
class PipelineRows(KernelPass):
    """TMA pipelining of whole rows: a producer warp brings those of the next programs, other warps compute.

    %x = tile.load %a[%p * 4096] : 4096              nvidia.stream {
    %m = tile.reduce max %x                            tile.for %p … { nvidia.acquire ; nvidia.bulk_copy 0 %a[…] }
    %e = tile.map exp(%x - %m)               →       } {
    …                                                  tile.for %p … { nvidia.wait ; %x = nvidia.read 0 ; nvidia.release
    tile.store %y[%p * 4096], …                          %m = tile.reduce max %x ; … ; tile.store %y[%p * 4096], … } }

    A block that reads its row, reduces it and writes it leaves memory idle while it computes, and its successor has yet
    to start. Here blocks are persistent, and what they need next is on its way all the time. It pays where a program
    has much to read and there are many programs; rows that are read by all programs alike stay in shared memory.

    How many warps and blocks hold a row is found by trying: layouts are assigned for each, the fewest blocks first.
    """

    name: ClassVar[str] = "pipeline_rows"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if not (copies := has_tma(kernel, target)):
            return copies
        if not kernel.grid.data or kernel.serial is not None or not _is_flat(kernel):
            return Refused("it is not straight code around a reduction")
        if _reads_back(kernel):
            return Refused("it reads after it has written")
        moving = _moving(kernel)
        if not moving:
            return Refused("no row of a program is one piece of memory")
        if (elements := prod(_largest(moving))) <= _LEAST_ELEMENTS:
            return Refused(f"its rows have {elements} elements: of so few, a multiprocessor holds many at once")
        return True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        moving = _moving(kernel)
        shape, programs = _largest(moving), product(list(kernel.grid.data))
        refused = Refused("no number of warps holds its rows")
        for warps, blocks in _choices(shape, moving):
            if isinstance(programs, int) and programs * blocks < _LEAST_TURNS * target.multiprocessors:
                return Refused(f"blocks have fewer than {_LEAST_TURNS} of its {programs} programs")
            copy = kernel.clone()
            refused = assign_layouts(copy, warps=warps, blocks=blocks)
            if refused is not None:
                return refused
            refused = _stream(copy, target, shape, warps, blocks)
            if refused is None:
                adopt(kernel, copy)
                return None
        return refused


def _moving(kernel: tile.KernelOp) -> list[tile.LoadOp]:
    """The loads of pieces of memory that are others in each program."""
    return [op for op in kernel.block.ops if isinstance(op, tile.LoadOp) and is_piece(op) and not is_fixed(op)]


def _largest(loads: Sequence[tile.LoadOp]) -> tuple[int, ...]:
    return max((tile.tile_type(op.out).sizes for op in loads), key=prod)


def _stream(
    kernel: tile.KernelOp, target: NvidiaTarget, shape: Sequence[int], warps: int, blocks: int
) -> Refused | None:
    """Split a kernel whose blocks have so many warps, and layouts, if its rows fit."""
    rows = [row for op in kernel.block.ops if isinstance(op, tile.LoadOp) and (row := row_of(op)) is not None]
    moving_bytes = sum(row.piece.bytes for row in rows if not row.kept)
    if moving_bytes < _LEAST_BYTES:
        return Refused(f"a block would bring {moving_bytes} bytes at a time: too few")
    if not _exchange_by_sending(kernel, blocks):
        return Refused("the blocks of a cluster cannot send each other what they reduce")
    rows = _that_fit(rows)
    kept_bytes = sum(row.piece.bytes for row in rows if row.kept)
    crossing = max((crossing_bytes(op) for op in kernel.walk() if CROSSES in op.attributes), default=0)
    threads = WARP * (warps + 1)
    held = _held_at_once(kernel.block, shape, sum(not row.kept for row in rows)) * prod(shape)
    resident, stages = _stages(target, threads, held // (blocks * warps * WARP), moving_bytes, kept_bytes)
    if stages < 2:
        return Refused("there is no room for two rows")
    _split(kernel, rows, stages, blocks, crossing)
    set_integer(kernel, RESIDENT, resident)
    ring = _up(stages * (moving_bytes + 16)) + _up(kept_bytes + 16) + _up(2 * crossing + 16)
    set_launch(kernel, Launch(threads, ring, blocks, blocks, persistent=True))
    return None


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _is_flat(kernel: tile.KernelOp) -> bool:
    simple = (tile.LoadOp, tile.StoreOp, tile.MapOp, tile.ReduceOp, tile.ConstantOp, tile.PositionOp, tile.GatherOp)
    ops = list(kernel.block.ops)
    flat = all(isinstance(op, (*simple, OnlineSoftmaxOp, MomentsOp, tile.ProgramOp, tile.ReturnOp)) for op in ops)
    return flat and any(isinstance(op, Reduction) for op in ops)


def _reads_back(kernel: tile.KernelOp) -> bool:
    """Whether something is read after something was written: it must not be brought before."""
    written = False
    for op in kernel.block.ops:
        if written and isinstance(op, tile.LoadOp | tile.GatherOp):
            return True
        written = written or isinstance(op, tile.StoreOp)
    return False


def _choices(shape: Sequence[int], moving: Sequence[tile.LoadOp]) -> Iterator[tuple[int, int]]:
    """The warps of a block and the blocks of a cluster that hold the rows of a program, the fewest blocks first."""
    elements, block = prod(shape), moving[0].parent_block()
    held = _held_at_once(block, shape, len(moving))
    alone = block is not None and held == 1 and sum(isinstance(op, tile.LoadOp) for op in block.ops) == 1
    most = max(_HELD >> (held - 1).bit_length(), 16)
    for most_warps in (_MOST_WARPS, 2 * _MOST_WARPS):
        for blocks in _BLOCKS:
            # A thread that holds half of what it could leaves room for more blocks, which work while this one waits.
            each = most if elements > blocks * most_warps * WARP * (most // 2) else most // 2
            if alone and blocks == _WIDE and elements <= blocks * _MOST_WARPS * WARP * most:
                yield 2 * _MOST_WARPS, blocks
            warps = 1 << max(-(-elements // (blocks * WARP * each)) - 1, 0).bit_length()
            if warps <= most_warps:
                yield warps, blocks


def _held_at_once(block: Block | None, shape: Sequence[int], loads: int) -> int:
    """How many tiles of a shape are needed after a reduction that were there before it, at most."""
    assert block is not None
    ops = list(block.ops)
    place = {op: number for number, op in enumerate(ops)}
    most = (loads + 1) // 2  # what is read takes half the registers, until it is widened
    for number, op in enumerate(ops):
        if isinstance(op, Reduction):
            results = [result for earlier in ops[:number] for result in earlier.results]
            tiles = [r for r in results if isinstance(r.type, tile.TileType) and r.type.sizes == tuple(shape)]
            most = max(most, sum(any(place[use.operation] > number for use in r.uses) for r in tiles))
    return most


def _exchange_by_sending(kernel: tile.KernelOp, blocks: int) -> bool:
    """Mark the reductions that cross blocks; False if they cannot be exchanged so."""
    if blocks > 1 and any(isinstance(op, ConvertOp) for op in kernel.walk()):
        return False  # that is through the memory of one block
    for op in kernel.walk():
        if not isinstance(op, Reduction) or blocks == 1:
            continue
        layout, axis = layout_of(op.value), op.axis.value.data
        if not any(mode.axis == axis for mode in layout.blocks):
            continue
        lanes = all(mode.axis in (axis, None) for mode in layout.lanes)
        if not lanes or any(mode.axis != axis for mode in (*layout.warps, *layout.blocks)):
            return False
        set_integer(op, CROSSES, 1)
    return True


def _that_fit(rows: list[Row]) -> list[Row]:
    """Without rows that would take more shared memory than can be kept."""
    room, chosen = _MOST_KEPT, list[Row]()
    for row in rows:
        if row.kept and row.piece.bytes > room:
            continue
        room -= row.piece.bytes if row.kept else 0
        chosen.append(row)
    return chosen


def _stages(target: NvidiaTarget, threads: int, held: int, stage_bytes: int, kept_bytes: int) -> tuple[int, int]:
    """How many blocks a multiprocessor holds, and the stages of each: registers and shared memory are enough."""
    blocks = max(1, min(target.registers // (threads * (_REGISTERS_BESIDE + held)), 2048 // threads))
    for resident in range(blocks, 0, -1):
        stages = ((target.shared_per_block - 4096) // resident - kept_bytes - 4096) // (stage_bytes + 16)
        if stages >= min(3, _MOST_STAGES) or (resident == 1 and stages >= 2):
            return resident, min(_MOST_STAGES, stages)
    return 0, 0


def _split(kernel: tile.KernelOp, rows: list[Row], stages: int, blocks: int, crossing: int) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    kinds = ("number", "count") if blocks == 1 else ("cluster", "clusters")
    first, count = (BlockNumberOp.make(kind) for kind in kinds)
    block.insert_ops_before([first, count], original[0])
    moving, kept = [row for row in rows if not row.kept], [row for row in rows if row.kept]
    programs, mapping = programs_of(kernel, first.out, count.out)
    producer = Block(
        [BulkCopyOp.make(row.load.pointer, [], i, row.load.offset, kept=True) for i, row in enumerate(kept)]
        + [programs]
    )
    programs.block.add_op(AcquireOp.of())
    for number, row in enumerate(moving):
        indices = [mapping.get(i, i) for i in row.load.indices]
        programs.block.add_op(BulkCopyOp.make(row.load.pointer, indices, number, row.load.offset, end=row.end))
    programs.block.add_ops([CommitOp.of(), tile.YieldOp.create()])
    programs, mapping = programs_of(kernel, first.out, count.out)
    consumer = Block([*([WaitKeptOp.create()] if kept else []), programs])
    _consume(programs.block, _ordered(original, {row.load for row in rows}), mapping, moving, kept)
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    brought, held = ([row.piece for row in each] for each in (moving, kept))
    block.insert_op_after(StreamOp.make(stages, brought, held, crossing, producer, consumer), count)


def programs_of(kernel: tile.KernelOp, first: SSAValue, count: SSAValue) -> tuple[tile.ForOp, dict[SSAValue, SSAValue]]:
    """A loop over the programs of this block, and what stands in it for a program's numbers."""
    sizes = list(kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :])
    renamed: dict[str, Size] = {name: symbol(f"d{i + 2}") for i, name in enumerate(kernel.size_names)}
    grid = [substitute(size, renamed) for size in kernel.grid.data]
    programs = tile.ForOp.make(tile.Sizes((symbol("d0"), product(grid), symbol("d1"))), [first, count, *sizes], [])
    number = programs.block.args[0]
    mapping: dict[SSAValue, SSAValue] = {}
    for op in kernel.block.ops:
        if isinstance(op, tile.ProgramOp):
            axis = op.axis.value.data
            value = floordiv(symbol("d0"), product(grid[axis + 1 :])) if axis + 1 < len(grid) else symbol("d0")
            value = mod(value, grid[axis]) if axis else value
            index = AffineApplyOp.make(tile.Sizes((value,)), [number, number, *sizes])
            programs.block.add_op(index)
            mapping[op.out] = index.out
    return programs, mapping


def _ordered(ops: list[Operation], rows: set[tile.LoadOp]) -> list[Operation]:
    """What needs no row comes after the first reduction of one, but for loads: these are then on their way.

    A thread goes on behind a load until it needs what is loaded.
    """
    needs_row: set[Operation] = set()
    for op in ops:
        if op in rows or any(isinstance(o.owner, Operation) and o.owner in needs_row for o in op.operands):
            needs_row.add(op)
    reductions = [op for op in ops if isinstance(op, Reduction)]
    first = next((op for op in reductions if op in needs_row), None)
    if first is None:
        return ops
    before = _needed_by(first)
    loads = [op for op in ops if isinstance(op, tile.LoadOp) and op not in rows]
    front = [op for op in ops if op in before and op not in loads]
    return [*loads, *front, *(op for op in ops if op not in before and op not in loads)]


def _needed_by(op: Operation) -> set[Operation]:
    found: set[Operation] = set()
    waiting = [op]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [o.owner for o in op.operands if isinstance(o.owner, Operation)]
    return found


def _consume(
    block: Block, ops: list[Operation], mapping: dict[SSAValue, SSAValue], moving: list[Row], kept: list[Row]
) -> None:
    places = {row.load: (number, row) for each in (moving, kept) for number, row in enumerate(each)}
    unread = {row.load for row in moving}
    for op in ops:
        if isinstance(op, tile.ProgramOp):
            continue
        if op not in places:
            block.add_op(op.clone(mapping))
            continue
        number, row = places[op]  # type: ignore[index]
        if not row.kept and len(unread) == len(moving):
            block.add_op(WaitOp.of())
        strides, type_ = tile.Sizes(strides_of(tile.tile_type(row.load.out).sizes)), row.load.out.type
        if row.end is None:
            read = ReadOp.make(number, strides, type_, row.kept)
        else:
            indices = [mapping.get(i, i) for i in row.load.indices]
            read = ReadOp.shifted(number, strides, type_, indices, row.load.offset, row.end)
        read.attributes[LAYOUTS] = row.load.attributes[LAYOUTS]
        block.add_op(read)
        mapping[row.load.out] = read.out
        unread.discard(row.load)
        if not row.kept and not unread:
            block.add_op(ReleaseOp.of())
    block.add_op(tile.YieldOp.create())
