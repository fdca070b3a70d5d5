"""TMA pipelining of programs that stay and walk rows: a producer warp brings the next rows, other warps compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import (
    ARGUMENTS,
    LAYOUTS,
    RESIDENT,
    WARPS,
    ConvertOp,
    integer,
    layout_of,
    layouts_of,
    set_integer,
    set_launch,
    set_layouts,
)
from weft.backends.nvidia.ir.fused_reductions import Reduction
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused, has_tma
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, WaitOp
from weft.backends.nvidia.ir.row_streams import (
    ALIGNMENT,
    BulkCopyOp,
    BulkCopyRowsOp,
    PieceType,
    ReadOp,
    StreamOp,
    WaitKeptOp,
)
from weft.backends.nvidia.ir.shared_bytes import shared_bytes
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp
from weft.backends.nvidia.layout.anchors import blocks_beside
from weft.backends.nvidia.layout.assign_layouts import assign_layouts
from weft.backends.nvidia.pipeline.row_pieces import room_of, strides_of
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import Size, floordiv, minimum, mod, product, symbol
from weft.tile import dialect as tile

_MOST_STAGES, _LEAST_STAGES = 4, 2
_NARROW = 64
"""Elements of what there is of a row beside its columns, which threads read by themselves."""
_PER_THREAD = 32
"""Elements of an operand that a thread reads of a stage at most."""


@dataclass(frozen=True)
class PipelinePersistentRows(KernelPass):
    """TMA pipelining of programs that stay and walk rows: a producer warp brings the next rows, other warps compute.

    %t = tile.for %r = 0 to 63 (%s) {              nvidia.stream {
      %m = tile.load %mean[%p * 63 + %r]             nvidia.bulk_copy 0 %weight[0] kept
      %x = tile.load %a[(%p * 63 + %r) * 4096]       tile.for %r … { nvidia.acquire ; nvidia.bulk_copy 0 %a[…] ; … }
      %w = tile.load %weight[0]                    } {
      …                                        →     %m0 = tile.load %mean[%p * 63] ; nvidia.wait_kept
      tile.store %y[…], %d                           %t = tile.for %r = 0 to 63 (%s, %m = %m0) {
      tile.yield %u }                                  nvidia.wait ; %x = nvidia.read 0 ; nvidia.release
    tile.store %parts[%p * 4096], %t                   %n = tile.load %mean[the next row's]
                                                       %w = nvidia.read 0 kept ; … ; tile.store %y[…], %d
                                                       tile.yield %u, %n }
                                                     tile.store %parts[%p * 4096], %t }

    A program that reads a row, reduces it, writes it and only then reads the next one leaves memory idle while it
    computes. What there is of a row beside its columns is read a row ahead. Where threads have no room for a row beside
    their sums, they read it again behind its reductions, and release its stage then.
    """

    name: ClassVar[str] = "pipeline_persistent_rows"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if not (copies := has_tma(kernel, target)):
            return copies
        if kernel.persistent is None or kernel.prefetched is None or not kernel.grid.data or kernel.size_names:
            return Refused("its programs do not stay, or bringing their rows gains nothing")
        return (
            True if _walk_of(kernel) is not None else Refused("it does not walk rows that TMA can bring, in one loop")
        )

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        if refused := assign_layouts(kernel):
            return refused
        if any(isinstance(op, ConvertOp) for op in kernel.walk()):
            return Refused("tiles would go through shared memory to change their layouts")
        walk = _walk_of(kernel)
        assert walk is not None
        moving, kept = ([_piece(load) for load in loads] for loads in (walk.moving, walk.kept))
        if max(layout_of(load.out).count for load in walk.moving) > _PER_THREAD:
            return Refused("a thread would hold too much of a row")
        resident = blocks_beside(kernel, target.multiprocessors)
        beside = sum(piece.bytes for piece in kept) + 2 * max(map(shared_bytes, kernel.walk())) + 4 * ALIGNMENT
        stage = sum(piece.bytes for piece in moving) + 16
        stages = min(_MOST_STAGES, (target.shared_per_block // resident - beside) // stage)
        if stages < _LEAST_STAGES:
            return Refused(f"{resident} blocks of a multiprocessor have no room for {_LEAST_STAGES} stages")
        _split(kernel, walk, stages, moving, kept)
        set_integer(kernel, RESIDENT, resident)
        ring = _up(stages * stage) + _up(sum(piece.bytes for piece in kept) + 16) + _up(16)
        set_launch(kernel, Launch(WARP * (integer(kernel, WARPS) + 1), ring))
        return None


@dataclass(frozen=True)
class _Walk:
    """A loop over rows: loads that TMA makes in every turn, or once, and those that threads make a turn ahead."""

    loop: tile.ForOp
    moving: list[tile.LoadOp]
    kept: list[tile.LoadOp]
    ahead: list[tile.LoadOp]


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _walk_of(kernel: tile.KernelOp) -> _Walk | None:
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    if len(loops) != 1 or any(op.regions for op in loops[0].block.ops):
        return None
    (loop,) = loops
    variable, programs = loop.block.args[0], {op.out for op in kernel.block.ops if isinstance(op, tile.ProgramOp)}
    walk = _Walk(loop, [], [], [])
    for op in loop.block.ops:
        if not isinstance(op, tile.LoadOp):
            if isinstance(op, tile.GatherOp):
                return None
            continue
        if not programs.issuperset(index for index in op.indices if index is not variable) or op.pieces > 1:
            return None
        moves = variable in op.indices
        if _is_piece(op, whole=not moves):
            (walk.moving if moves else walk.kept).append(op)
        elif moves and prod(tile.tile_type(op.out).sizes) <= _NARROW:
            walk.ahead.append(op)
        else:
            return None
    return walk if walk.moving else None


def _is_piece(op: tile.LoadOp, *, whole: bool) -> bool:
    """Whether a load reads pieces of memory that TMA can move: one for each row, or one of all."""
    sizes, strides, size = tile.tile_type(op.out).sizes, op.strides.data, pointer_dtype(op).bytes
    pitch = 1
    for axis in reversed(range(len(sizes))):
        if axis == 0 and not whole and pitch > 1:
            apart = strides[0] if sizes[0] > 1 else 0
            aligned = isinstance(apart, int) and apart * size % WIDEST == 0
            return aligned and pitch * size % WIDEST == 0 and _is_aligned(op, size)
        if op.extents.data[axis] != sizes[axis] or (sizes[axis] > 1 and strides[axis] != pitch):
            return False
        pitch *= sizes[axis]
    return pitch * size % WIDEST == 0 and _is_aligned(op, size)


def _is_aligned(op: tile.LoadOp, size: int) -> bool:
    return divisor_of(op.offset.data[0], op.indices) * size % WIDEST == 0


def _piece(op: tile.LoadOp) -> PieceType:
    sizes = tile.tile_type(op.out).sizes
    return PieceType.of(prod(sizes), prod(sizes), room_of(layout_of(op.out), strides_of(sizes)), pointer_dtype(op))


def _split(
    kernel: tile.KernelOp, walk: _Walk, stages: int, moving: Sequence[PieceType], kept: Sequence[PieceType]
) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    number = BlockNumberOp.make("number")
    block.insert_op_before(number, original[0])
    mapping = _programs(kernel, number)
    producer = Block([_copy_kept(load, slot, mapping) for slot, load in enumerate(walk.kept)])
    producer.add_op(_produced(walk, dict(mapping)))
    consumer = Block([WaitKeptOp.create()] if walk.kept else [])
    for op in original:
        if op is walk.loop:
            _consume(consumer, walk, mapping, again=kernel.reread is not None)
        elif not isinstance(op, tile.ProgramOp):
            consumer.add_op(op.clone(mapping))
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    end = block.last_op
    assert end is not None
    block.insert_op_before(StreamOp.make(stages, moving, kept, 0, producer, consumer), end)


def _programs(kernel: tile.KernelOp, number: BlockNumberOp) -> dict[SSAValue, SSAValue]:
    """What stands for a program's numbers, each made of the block's."""
    found: dict[SSAValue, SSAValue] = {}
    grid = kernel.grid.data
    for op in kernel.block.ops:
        if isinstance(op, tile.ProgramOp):
            axis = op.axis.value.data
            value: Size = mod(floordiv(symbol("d0"), product(grid[axis + 1 :])), grid[axis])
            made = AffineApplyOp.make(tile.Sizes((value,)), [number.out])
            found[op.out] = made.out
            kernel.block.insert_op_before(made, op)
    return found


def _produced(walk: _Walk, mapping: dict[SSAValue, SSAValue]) -> tile.ForOp:
    """The producer's loop: all that moves of a turn's rows."""
    loop = tile.ForOp.make(walk.loop.bounds, [mapping.get(i, i) for i in walk.loop.indices], [])
    mapping[walk.loop.block.args[0]] = loop.block.args[0]
    copies = [_copy(load, slot, mapping) for slot, load in enumerate(walk.moving)]
    loop.block.add_ops([AcquireOp.of(), *copies, CommitOp.of(), tile.YieldOp.create()])
    return loop


def _copy_kept(load: tile.LoadOp, slot: int, mapping: dict[SSAValue, SSAValue]) -> Operation:
    return BulkCopyOp.make(load.pointer, [mapping.get(i, i) for i in load.indices], slot, load.offset, kept=True)


def _copy(load: tile.LoadOp, slot: int, mapping: dict[SSAValue, SSAValue]) -> Operation:
    """One copy where rows lie one after the other and all of them exist, else one for each row."""
    sizes, indices = tile.tile_type(load.out).sizes, [mapping.get(i, i) for i in load.indices]
    length = prod(sizes[1:])
    if sizes[0] == 1 or (load.extents.data[0] == sizes[0] and load.strides.data[0] == length):
        return BulkCopyOp.make(load.pointer, indices, slot, load.offset)
    return BulkCopyRowsOp.create(
        operands=[load.pointer, *indices],
        attributes={
            "slot": IntegerAttr(slot, i64),
            "offset": load.offset,
            "apart": tile.Sizes((load.strides.data[0],)),
            "extent": tile.Sizes((load.extents.data[0],)),
            "rows": IntegerAttr(sizes[0], i64),
            "length": IntegerAttr(length, i64),
            "pitch": IntegerAttr(length, i64),
        },
    )


def _consume(consumer: Block, walk: _Walk, mapping: dict[SSAValue, SSAValue], *, again: bool) -> None:
    """The consumers' loop, which carries what it reads ahead beside what it carried."""
    old = walk.loop
    bounds, indices = old.bounds, [mapping.get(i, i) for i in old.indices]
    lower, upper, step = bounds.data
    first = AffineApplyOp.make(tile.Sizes((lower,)), indices)
    consumer.add_op(first)
    early = [_at(load, first.out, old, mapping) for load in walk.ahead]
    consumer.add_ops(early)
    initial = [*(mapping.get(v, v) for v in old.initial), *(load.out for load in early)]
    loop = tile.ForOp.make(bounds, indices, initial)
    layouts = [*layouts_of(old), *(layout_of(load.out) for load in walk.ahead)]
    set_layouts(loop, layouts)
    set_layouts(loop, layouts, ARGUMENTS)
    block, inside = loop.block, dict(mapping)
    inside.update(zip(old.block.args, block.args, strict=False))
    carried = block.args[len(old.block.args) :]
    inside.update((load.out, value) for load, value in zip(walk.ahead, carried, strict=True))
    block.add_op(WaitOp.of())
    reads = {load: _read(load, slot, inside) for slot, load in enumerate(walk.moving)}
    block.add_ops([*reads.values(), ReleaseOp.of()])
    last = lower + floordiv(upper - 1 - lower, step) * step
    beyond = AffineApplyOp.make(
        tile.Sizes((minimum(symbol(f"d{len(indices)}") + step, last),)), [*indices, block.args[0]]
    )
    following = [_at(load, beyond.out, old, mapping) for load in walk.ahead]
    block.add_ops([beyond, *following] if following else [])
    reads |= {load: _read(load, slot, inside, kept=True) for slot, load in enumerate(walk.kept)}
    for op in old.block.ops:
        if isinstance(op, tile.LoadOp) and op in reads:
            if op in walk.kept:
                block.add_op(reads[op])
            inside[op.out] = reads[op].out
        elif isinstance(op, tile.YieldOp):
            carried_on = [*(inside.get(v, v) for v in op.operands), *(load.out for load in following)]
            block.add_op(tile.YieldOp.create(operands=carried_on))
        elif op not in walk.ahead:
            block.add_op(op.clone(inside))
    if again:
        _read_again(block)
    consumer.add_op(loop)
    mapping.update(zip(old.results, loop.results, strict=False))


def _read_again(block: Block) -> None:
    """Read rows again behind their last reduction, and make again what is made of them: threads hold none meanwhile."""
    ops = list(block.ops)
    last = max((n for n, op in enumerate(ops) if isinstance(op, Reduction)), default=-1)
    early, made = set(ops[: last + 1]), dict[SSAValue, SSAValue]()

    def again(value: SSAValue, before: Operation) -> SSAValue:
        op = value.owner
        if value not in made and isinstance(op, ReadOp | tile.MapOp) and op in early and _is_wide(value):
            clone = op.clone({operand: again(operand, before) for operand in op.operands})
            block.insert_op_before(clone, before)
            made[value] = clone.results[0]
        return made.get(value, value)

    for op in ops[last + 1 :]:
        for number, operand in enumerate(op.operands):
            op.operands[number] = again(operand, op)
    (release,) = (op for op in ops if isinstance(op, ReleaseOp))
    release.detach()
    block.insert_op_before(release, ops[-1])


def _is_wide(value: SSAValue) -> bool:
    return isinstance(value.type, tile.TileType) and prod(value.type.sizes) > _NARROW


def _at(load: tile.LoadOp, row: SSAValue, loop: tile.ForOp, mapping: dict[SSAValue, SSAValue]) -> tile.LoadOp:
    """A load of what belongs to a given row."""
    return load.clone({**mapping, loop.block.args[0]: row})


def _read(load: tile.LoadOp, slot: int, mapping: dict[SSAValue, SSAValue], *, kept: bool = False) -> ReadOp:
    sizes = tile.tile_type(load.out).sizes
    read = ReadOp.make(slot, tile.Sizes(strides_of(sizes)), load.out.type, kept, load.extents)
    read.operands = [mapping.get(i, i) for i in load.indices]
    read.attributes[LAYOUTS] = load.attributes[LAYOUTS]
    return read
