"""TMA pipelining of rows in blocks: a producer warp brings the next blocks, other warps compute."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Block, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import (
    LAYOUTS,
    RESIDENT,
    WARPS,
    ConvertOp,
    integer,
    layout_of,
    set_integer,
    set_launch,
)
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused, adopt, has_tma
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, RewindOp, WaitOp
from weft.backends.nvidia.ir.row_streams import ALIGNMENT, CROSSES, BulkCopyOp, PieceType, ReadOp, StreamOp
from weft.backends.nvidia.ir.shared_bytes import crossing_bytes
from weft.backends.nvidia.ir.warp_specialization import BlockNumberOp
from weft.backends.nvidia.layout.assign_layouts import assign_layouts
from weft.backends.nvidia.pipeline.pipeline_rows import programs_of
from weft.backends.nvidia.pipeline.split_rows import split_rows_over_cluster
from weft.backends.nvidia.target import NvidiaTarget
from weft.backends.nvidia.transforms.peel_loops import peel_loops
from weft.ir.expr import product
from weft.tile import dialect as tile

_RESIDENT = 4
"""Blocks of a multiprocessor at most: while one finishes a row, others go on."""
_REGISTERS_BESIDE = 24
"""What a thread needs beside what its loops carry."""
_MOST_STAGES = 8
_HOLDING = 3
"""Blocks of a multiprocessor that hold a row, or a part of one."""
_LEAST_HELD = 32768
"""Bytes of that from which on it pays."""
_BLOCKS = (1, 2, 4, 8)
_LEAST_TURNS = 2
"""Programs of a block from which on it pays to stay."""
_RESERVED = 8192
"""Shared memory that is left to reductions."""
_SIMPLE = (tile.LoadOp, tile.StoreOp, tile.MapOp, tile.ReduceOp, tile.ConstantOp, tile.PositionOp, tile.GatherOp)


@dataclass(frozen=True)
class _Stage:
    """Loads that come together: those of an iteration of a loop."""

    loop: tile.ForOp
    loads: list[tile.LoadOp]

    @property
    def turns(self) -> int:
        lower, upper, step = (int(size) for size in self.loop.bounds.data if isinstance(size, int))
        return -(-(upper - lower) // step)

    @property
    def brought(self) -> Hashable:
        """What all iterations read: equal for loops that walk the same."""
        variable = self.loop.block.args[0]
        return self.loop.bounds, tuple(
            (op.pointer, op.offset, op.extents, tuple(None if i is variable else i for i in op.indices))
            for op in self.loads
        )


@dataclass(frozen=True)
class _Ring:
    """How rows are brought: the blocks of a multiprocessor, the stages of each, and how many loops bring something."""

    resident: int
    stages: int
    loops: int
    blocks: int = 1
    """Those of a cluster, that share a row."""
    holds: bool = False
    """Whether it has all that a block has of a row: each has one then."""


@dataclass(frozen=True)
class PipelineStreams(KernelPass):
    """TMA pipelining of rows in blocks: a producer warp brings the next blocks, other warps compute.

    tile.for %c = 0 to 9000 by 4096 (%s) {     nvidia.stream {
      %x = tile.load %a[%p * 9000 + %c]          tile.for %p … { tile.for %c … { nvidia.acquire ; nvidia.bulk_copy … } }
      %t = tile.map add(%s, %x)           →    } {
      tile.yield %t }                            tile.for %p … { tile.for %c … { nvidia.wait ; %x = nvidia.read 0 ; … }
    …                                              … tile.store %y[%p], %r } }
    tile.store %y[%p], %r

    As in `pipeline_rows`, blocks of threads are persistent and the next bytes are on their way all the time, also while
    a row's last results are computed; but a row need not be held, so that no cluster has to share it.
    """

    name: ClassVar[str] = "pipeline_streams"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return _walks_blocks(kernel, target)

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        stages = _stages(kernel)
        if not stages:
            return _UNKNOWN
        refused = assign_layouts(kernel)
        if refused is not None:
            return refused
        resident = _resident(kernel, target)
        programs = product(list(kernel.grid.data))
        if isinstance(programs, int) and programs < _LEAST_TURNS * resident * target.multiprocessors:
            return Refused(f"blocks have fewer than {_LEAST_TURNS} of its {programs} programs")
        count = min(_MOST_STAGES, _fitting(target, stages, resident))
        if count < 2:
            return Refused("there is no room for two stages")
        return _with_roles(kernel, stages, _Ring(resident, count, len(stages)))


@dataclass(frozen=True)
class HoldStreams(KernelPass):
    """Bring rows once that several loops walk.

    Where several loops walk the same row (a softmax that finds its sum, then writes), it is brought once, to stages
    that hold all of it, in one block of threads or in a cluster of them. Each has one row then: several stand beside
    each other, and while some wait for theirs, others compute and write.

    tile.for %c … { … tile.load %a[…] … }         nvidia.stream { … } {
    tile.for %c … { … tile.load %a[…] … }    →      tile.for %c … { nvidia.wait ; %x = nvidia.read 0 ; … }
                                                    nvidia.rewind
                                                    tile.for %c … { nvidia.wait ; %x = nvidia.read 0 ; … } }

    How many blocks share a row is found by trying, the fewest first.
    """

    name: ClassVar[str] = "hold_streams"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return _walks_blocks(kernel, target)

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        refused = _UNKNOWN
        for blocks in _BLOCKS:
            copy = kernel.clone()
            if blocks > 1 and not split_rows_over_cluster(copy, blocks):
                continue
            stages = _stages(copy)
            loops = len(stages) // _walks(stages) if stages else 0
            if not stages or loops == len(stages):
                refused = Refused("no two of its loops walk the same")
                continue
            turns = sum(stage.turns for stage in stages[:loops])
            if turns * _stage_bytes(stages) < _LEAST_HELD or turns > _fitting(target, stages, _HOLDING):
                refused = Refused(f"{_HOLDING} blocks of a multiprocessor do not hold a row, or one that is worth it")
                continue
            refused = assign_layouts(copy) or _with_roles(
                copy, stages, _Ring(_HOLDING, turns, loops, blocks, holds=True)
            )
            if refused is None:
                adopt(kernel, copy)
            return refused
        return refused


_UNKNOWN = Refused("what its loops bring differs, or is not known")


def _walks_blocks(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Kernels of blocks of columns in loops."""
    if not (copies := has_tma(kernel, target)):
        return copies
    simple = kernel.grid.data and kernel.serial is None and _is_simple(kernel)
    return True if simple else Refused("it does not walk rows in loops, with nothing in them that needs all threads")


def _with_roles(kernel: tile.KernelOp, stages: Sequence[_Stage], ring: _Ring) -> Refused | None:
    """Split a kernel with layouts, in place."""
    if any(isinstance(op, ConvertOp) for op in kernel.walk()):
        return Refused("tiles would go through shared memory to change their layouts")
    crossing = ring.blocks * max((crossing_bytes(op) for op in kernel.walk() if CROSSES in op.attributes), default=0)
    _split(kernel, stages, ring, crossing)
    set_integer(kernel, RESIDENT, ring.resident)
    threads = WARP * (integer(kernel, WARPS) + 1)
    # As `emit_row_stream` lays it out: the ring, then barriers for what is kept and what crosses blocks.
    shared = sum(map(_up, (ring.stages * _stage_bytes(stages), 16, 2 * crossing + 16)))
    set_launch(kernel, Launch(threads, shared, ring.blocks, ring.blocks, persistent=not ring.holds))
    return None


def _fitting(target: NvidiaTarget, stages: Sequence[_Stage], resident: int) -> int:
    """The stages that so many blocks of a multiprocessor have room for."""
    return (target.shared_per_block // resident - _RESERVED) // _stage_bytes(stages)


def _stage_bytes(stages: Sequence[_Stage]) -> int:
    return sum(piece.bytes for piece in _pieces(stages)) + 16


def _pieces(stages: Sequence[_Stage]) -> list[PieceType]:
    return [PieceType.of(size, size, size, pointer_dtype(op)) for op in stages[0].loads for size in [_side(op)]]


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


def _stages(kernel: tile.KernelOp) -> list[_Stage] | None:
    """What loops bring, which are peeled in place; None if one brings nothing, or others something else."""
    loops = peel_loops(kernel)
    numbers: set[SSAValue] = {op.out for op in kernel.block.ops if isinstance(op, tile.ProgramOp)}
    found = [
        _Stage(loop, [op for op in loop.block.ops if isinstance(op, tile.LoadOp) and _is_piece(op, numbers)])
        for loop in loops or []
    ]
    places: dict[SSAValue, int] = {argument: number for number, argument in enumerate(kernel.block.args)}
    for stage in found:  # what loops read in different orders lies in the same slots
        stage.loads.sort(key=lambda op: (places[op.pointer], str(op.offset)))
    kinds = {tuple((_side(op), pointer_dtype(op)) for op in stage.loads) for stage in found}
    return found if len(kinds) == 1 and found[0].loads else None


def _walks(stages: Sequence[_Stage]) -> int:
    """How often the same is read, one time after the other."""
    for count in range(len(stages), 1, -1):
        length = len(stages) // count
        if length * count == len(stages) and all(
            stage.brought == stages[number % length].brought for number, stage in enumerate(stages)
        ):
            return count
    return 1


def _is_piece(op: tile.LoadOp, numbers: set[SSAValue]) -> bool:
    """Whether a load reads one piece of memory that TMA can move, another one in each program."""
    sizes, size = tile.tile_type(op.out).sizes, pointer_dtype(op).bytes
    if len(sizes) != 1 or sizes[0] == 1 or op.strides.data != (1,) or not numbers & set(op.indices):
        return False
    extent, step = op.extents.data[0], divisor_of(op.offset.data[0], op.indices)
    return isinstance(extent, int) and extent * size % WIDEST == 0 and step * size % WIDEST == 0


def _split(kernel: tile.KernelOp, stages: Sequence[_Stage], ring: _Ring, crossing: int) -> None:
    """Let one role bring the first stages, which others read again."""
    block = kernel.block
    walk = stages[: ring.loops]
    for stage in stages[ring.loops :: ring.loops]:
        block.insert_op_before(RewindOp.by(sum(each.turns for each in walk)), stage.loop)
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp | BlockNumberOp)]
    kinds = ("number", "count") if ring.blocks == 1 else ("cluster", "clusters")
    first, number = (BlockNumberOp.make(kind) for kind in kinds)
    block.insert_ops_before([first, number], original[0])
    programs, mapping = programs_of(kernel, first.out, number.out)
    _produce(programs.block, walk, mapping)
    producer = Block([programs])
    for place, stage in enumerate(stages):
        _consume(stage, last=place >= len(stages) - ring.loops)
    programs, mapping = programs_of(kernel, first.out, number.out)
    for op in original:
        if not isinstance(op, tile.ProgramOp):
            programs.block.add_op(op.clone(mapping))
    programs.block.add_op(tile.YieldOp.create())
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    block.insert_op_after(
        StreamOp.make(ring.stages, _pieces(stages), [], crossing, producer, Block([programs])), number
    )


def _produce(block: Block, stages: Sequence[_Stage], mapping: dict[SSAValue, SSAValue]) -> None:
    """Bring all stages of a program."""
    for stage in stages:
        loop = tile.ForOp.make(stage.loop.bounds, [], [])
        mapping[stage.loop.block.args[0]] = loop.block.args[0]
        moved = sum(_extent(op) * pointer_dtype(op).bytes for op in stage.loads)
        loop.block.add_op(AcquireOp.expecting(moved))
        for number, op in enumerate(stage.loads):
            indices = [mapping.get(index, index) for index in op.indices]
            made = BulkCopyOp.make(op.pointer, indices, number, op.offset, elements=_extent(op))
            loop.block.add_op(made)
        loop.block.add_ops([CommitOp.of(), tile.YieldOp.create()])
        block.add_op(loop)
    block.add_op(tile.YieldOp.create())


def _consume(stage: _Stage, *, last: bool) -> None:
    """Let the loads of a stage be reads of its slots, which the last to read them gives back."""
    block = stage.loop.block
    loads = [op for op in block.ops if isinstance(op, tile.LoadOp) and op in stage.loads]
    block.insert_op_before(WaitOp.of(), loads[0])
    for op in loads:
        read = ReadOp.make(stage.loads.index(op), tile.Sizes((1,)), op.out.type, extents=op.extents)
        read.attributes[LAYOUTS] = op.attributes[LAYOUTS]
        block.insert_op_before(read, op)
        if op is loads[-1]:
            block.insert_op_before(ReleaseOp.of() if last else CommitOp.of(), op)
        op.out.replace_all_uses_with(read.out)
        op.detach()
        op.erase()


def _extent(op: tile.LoadOp) -> int:
    extent = op.extents.data[0]
    assert isinstance(extent, int)
    return extent
