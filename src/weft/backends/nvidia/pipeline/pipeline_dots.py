"""TMA pipelining and warp specialization of dots: a producer warp fills a ring of stages, consumers multiply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import IndexType, IntegerAttr, UnitAttr, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from weft.backends.nvidia.code import Launch, TensorMap
from weft.backends.nvidia.ir.dialect import (
    CONSUMERS,
    RESIDENT,
    SHARED,
    WARPS,
    integer,
    launch_of,
    set_integer,
    set_launch,
)
from weft.backends.nvidia.ir.dynamic_tile_scheduler import dynamic_bytes
from weft.backends.nvidia.ir.index_slices import ops_behind
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.rings import (
    BARRIER_BYTES,
    AcquireOp,
    CommitOp,
    ReleaseOp,
    RingToRegistersOp,
    RingType,
    SlotOp,
    TmaLoadOp,
    WaitOp,
)
from weft.backends.nvidia.ir.tma_alignment import why_unaligned
from weft.backends.nvidia.ir.tma_store import MAP, STAGE_BYTES, is_staged
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp, WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.backends.nvidia.matmul_unit import MatmulUnit
from weft.backends.nvidia.pipeline.epilogue_operands import EpilogueOperand, epilogue_operands_of
from weft.backends.nvidia.pipeline.multicast_operands import Multicast, multicast_operands
from weft.backends.nvidia.pipeline.operand_copies import Batch, Operands, blocks_of, operands_of
from weft.backends.nvidia.pipeline.ring_stages import RingStages, equal_stages, single_stages
from weft.backends.nvidia.pipeline.tile_scheduler import ThreadBlockCluster, TileScheduler, worth_dynamic
from weft.backends.nvidia.target import SYSTEM_SHARED, NvidiaTarget
from weft.ir.expr import symbol
from weft.ir.types import DType
from weft.tile import dialect as tile

_MOST_STAGES, _ALIGNMENT = 6, 1024
_MOST_AHEAD = 10
"""Stages of weights that are on their way before the kernel ahead has ended."""
_FEW_SUMS = 64 * 128
"""Of one consumer, with registers left for another block."""


@dataclass(frozen=True)
class PipelineDots(KernelPass):
    """Warp-specialize a kernel around dots: one that copies operands in, others that multiply.

    %c = tile.for %k (%acc) {                      nvidia.warp_specialize {
      %a = tile.load %x[%m, %k] : 128x64             … nvidia.acquire ; nvidia.tma_load 0 [%k, %m] ; nvidia.tma_load 1 …
      %b = tile.load %w[%k, %n] : 64x256     →     } {
      tile.yield tile.dot %a, %b, %acc }             … nvidia.wait ; nvidia.wgmma … ; nvidia.wgmma_wait ; nvidia.release
    tile.store %y[%m, %n], gelu(%c)                  tile.store %y[%m, %n], gelu(%c)
                                                   }

    The loads that only dots read are what the producer does; all else stays with the consumers. A dot is begun
    where it stands and waited for where something else first needs it, so that what stands between runs beside it.
    Blocks are persistent: each walks the programs, in an order that keeps what neighbours share in the second-level
    cache.
    """

    name: ClassVar[str] = "pipeline_dots"
    decides: ClassVar[bool] = True

    ahead: bool = True
    """Whether what the next program holds comes ahead, while this one is computed, where there is room."""
    single: bool = False
    """Whether rings may have one stage each, where dots take turns of several."""

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        found = _pipelined(kernel, target)
        if isinstance(found, Refused):
            return found
        return _pipeline(kernel, target, found, single_stages if self.single else partial(equal_stages, self.ahead))


@dataclass(frozen=True)
class _Pipelined:
    """What TMA brings to the dots of a kernel, and who multiplies."""

    unit: MatmulUnit
    operands: Operands
    epilogue_operands: Mapping[tile.LoadOp, EpilogueOperand]
    needed: set[Operation]
    dots: Sequence[tile.DotOp]
    rows: int
    consumers: int


def _pipelined(kernel: tile.KernelOp, target: NvidiaTarget) -> _Pipelined | Refused:
    """Loops of dots that the tensor cores of Hopper take from slots."""
    unit = target.matmul_unit("shared")
    if unit is None:
        return Refused(f"{target.arch} has nothing that multiplies from shared memory")
    blocks = blocks_of(kernel)
    dots = [op for block in blocks or () for op in block.ops if isinstance(op, tile.DotOp)]
    if not dots or all(dot.parent is kernel.block for dot in dots):
        return Refused("it has branches, or no dot in a loop")
    rows = tile.tile_type(dots[0].out).sizes[0]
    consumers = integer(kernel, CONSUMERS) or {64: 1, 128: 2, 192: 3, 256: 2}.get(rows)
    if consumers is None:
        return Refused(f"warp groups do not share {rows} rows")
    operands = operands_of(kernel, dots, unit, early=rows == 64)
    if operands is None:
        why = why_unaligned(kernel, [value for dot in dots for value in (dot.a, dot.b)])
        return Refused(f"TMA cannot bring the operands of its dots{'' if why is None else f': {why}'}")
    if not all(_fits(dot, operands.dtype, consumers, unit) for dot in dots):
        return Refused(f"a dot is none of {consumers} warp groups and {operands.dtype.name}")
    # A ring has one producer, and an addend is not there early.
    epilogue_operands = (
        {} if operands.starts_early else epilogue_operands_of(kernel, operands, tile.tile_type(dots[0].out).sizes)
    )
    needed = _needed(kernel, operands, epilogue_operands)
    if needed is None:
        return Refused("where operands are is computed of what is multiplied")
    return _Pipelined(unit, operands, epilogue_operands, needed, dots, rows, consumers)


def _pipeline(kernel: tile.KernelOp, target: NvidiaTarget, found: _Pipelined, stages_of: RingStages) -> Refused | None:
    operands, epilogue_operands, consumers = found.operands, found.epilogue_operands, found.consumers
    sharing = multicast_operands(kernel, operands)
    copied = [copy.map for batch in operands.batches.values() for copy in batch.copies]
    inputs = list(dict.fromkeys([*copied, *(epilogue_operand.map for epilogue_operand in epilogue_operands.values())]))
    staged = [op for op in kernel.walk() if is_staged(op)]
    staging = 4 * consumers * 2 * STAGE_BYTES if staged else 0
    resident = integer(kernel, RESIDENT, 1) if found.rows == 128 else 1
    room = target.shared_per_block // resident - resident * _ALIGNMENT
    most = _MOST_STAGES
    if operands.starts_early:
        # A kernel that adds up parts of K comes behind these, and two blocks side by side do not wait for it.
        in_parts = sum(size != 1 for size in kernel.grid.data) > 1
        sums = [tile.tile_type(dot.out).sizes for dot in found.dots]
        resident, most = (2, most) if in_parts and sum(map(prod, sums)) <= _FEW_SUMS else (1, _MOST_AHEAD)
        room = ((target.shared_per_block + SYSTEM_SHARED) // resident - SYSTEM_SHARED) // _ALIGNMENT * _ALIGNMENT
    counts = stages_of(operands, room - staging - dynamic_bytes(kernel), most)
    if counts is None:
        return Refused("there is no room for two stages of its operands")
    rings = list(map(RingType.of, counts, operands.rings))
    set_integer(kernel, RESIDENT, resident)
    persistent = not worth_dynamic(kernel, target.multiprocessors, resident)
    ring = sum(each.bytes + each.count * BARRIER_BYTES for each in rings) + dynamic_bytes(kernel)
    ring = -(-ring // _ALIGNMENT) * _ALIGNMENT
    for op in staged:
        set_integer(op, SHARED, ring)
        if MAP in op.attributes:  # behind the maps of what is read
            set_integer(op, MAP, integer(op, MAP) + len(inputs))
    times = (False, True) if operands.starts_early else (False,)
    producers = [_Producer(operands, epilogue_operands, inputs, found.needed, early) for early in times]
    _split(kernel, producers, _Consumer(operands, epilogue_operands), rings, consumers, sharing)
    set_integer(kernel, WARPS, 4 * consumers)
    maps = (*inputs, *launch_of(kernel).maps)
    cluster = 1 if sharing is None else sharing.blocks
    threads = found.unit.threads * (consumers + 1)
    set_launch(kernel, Launch(threads, ring + staging, cluster, persistent=persistent, maps=maps))
    return None


def _needed(
    kernel: tile.KernelOp, operands: Operands, epilogue_operands: Iterable[tile.LoadOp]
) -> set[Operation] | None:
    """The ops that the producer repeats: those that its places and the bounds of its loops are computed by."""
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp) and operands.any_in(op)]
    return ops_behind(index for op in (*operands.batches, *epilogue_operands, *loops) for index in op.indices)


def _fits(dot: tile.DotOp, dtype: DType, consumers: int, unit: MatmulUnit) -> bool:
    (rows, columns), depth = tile.tile_type(dot.out).sizes, tile.tile_type(dot.a).sizes[1]
    return unit.makes(dtype, tile.tile_type(dot.out).dtype, (rows, columns, depth), consumers)


def _split(
    kernel: tile.KernelOp,
    producers: Sequence[_Producer],
    consumer: _Consumer,
    rings: Sequence[RingType],
    consumers: int,
    sharing: Multicast | None,
) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    kinds = ("number", "count") if sharing is None else ("cluster", "clusters")
    first, count, rank = (BlockNumberOp.make(kind) for kind in (*kinds, "rank"))
    limit = _limit(kernel)
    found = [first, count, *([] if sharing is None else [rank]), *limit]
    block.insert_ops_before(found, original[0])
    cluster = None if sharing is None else ThreadBlockCluster(sharing, rank.out)
    numbers = first.out, count.out, limit[-1].results[0] if limit else None, cluster
    walked = [TileScheduler.of(kernel, *numbers) for _ in (consumer, *producers)]
    for role, programs in zip((consumer, *producers), walked, strict=True):
        role.mapping = programs.numbers()
        role.walk(original, programs.loop.block)
        programs.loop.block.add_op(tile.YieldOp.create())
    consuming, producing, *early = (Block([programs.loop]) for programs in walked)
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    blocks = 1 if sharing is None else sharing.blocks
    roles = WarpSpecializeOp.make(consumers, rings, producing, consuming, *early, cluster=blocks)
    block.insert_op_after(roles, found[-1])


def _limit(kernel: tile.KernelOp) -> list[Operation]:
    """Ops that read how many programs there are along the last axis, if memory says so."""
    if kernel.limit_pointer is None:
        return []
    attributes = {"offset": tile.Sizes((0,))}
    read = tile.NumberOp.create(operands=[kernel.limit_pointer], attributes=attributes, result_types=[IndexType()])
    return [read, AffineApplyOp.make(tile.Sizes((symbol("d0") + tile.NumberOp.LEAST,)), [read.out])]


def _numbered(**numbers: int) -> dict[str, Attribute]:
    return {name: IntegerAttr(number, i64) for name, number in numbers.items()}


@dataclass
class _Producer:
    """Brings each batch where the last load of it stands: those that come early, or the others."""

    operands: Operands
    epilogue_operands: Mapping[tile.LoadOp, EpilogueOperand]
    maps: Sequence[TensorMap]
    needed: set[Operation]
    early: bool = False
    mapping: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    passed: set[tile.LoadOp] = field(default_factory=set[tile.LoadOp])

    def walk(self, ops: Sequence[Operation], block: Block) -> None:
        for op in ops:
            if op in self.needed:
                block.add_op(op.clone(self.mapping))
            elif isinstance(op, tile.ForOp) and self.operands.any_in(op):
                turns = tile.ForOp.make(op.bounds, [self.mapping.get(i, i) for i in op.indices], [])
                block.add_op(turns)
                self.mapping[op.block.args[0]] = turns.block.args[0]
                self.walk(list(op.block.ops), turns.block)
                turns.block.add_op(tile.YieldOp.create())
            elif isinstance(op, tile.LoadOp) and op in self.operands.batches:
                self.passed.add(op)
                batch = self.operands.batches[op]
                if batch.early == self.early and op in batch.loads and batch.loads <= self.passed:
                    self._bring(batch, block)
            elif isinstance(op, tile.LoadOp) and op in self.epilogue_operands and not self.early:
                self._add(self.epilogue_operands[op], block)

    def _add(self, epilogue_operand: EpilogueOperand, block: Block) -> None:
        """Bring an addend behind the operands."""
        for number in range(epilogue_operand.parts):
            attributes = _numbered(
                ring=epilogue_operand.ring, slot=epilogue_operand.slot, map=self.maps.index(epilogue_operand.map)
            )
            attributes |= {"coordinates": tile.Sizes(epilogue_operand.at(number)), "part": epilogue_operand.part}
            indices = [self.mapping.get(i, i) for i in epilogue_operand.load.indices]
            fill = TmaLoadOp.create(operands=indices, attributes=attributes)
            block.add_ops(
                [
                    AcquireOp.expecting(epilogue_operand.part.bytes, epilogue_operand.ring),
                    fill,
                    CommitOp.of(epilogue_operand.ring),
                ]
            )

    def _bring(self, batch: Batch, block: Block) -> None:
        block.add_op(AcquireOp.of(batch.ring))
        for number, copy in enumerate(batch.copies):
            attributes = _numbered(ring=batch.ring, slot=number, map=self.maps.index(copy.map))
            attributes["coordinates"] = tile.Sizes(copy.coordinates)
            if copy.load.pieces > 1:
                attributes |= _numbered(pieces=copy.load.pieces)
            if copy.sharers > 1:
                attributes |= _numbered(sharers=copy.sharers)
            if batch.early or copy.load.once is not None:
                attributes["once"] = UnitAttr()
            indices = [self.mapping.get(i, i) for i in copy.load.indices]
            block.add_op(TmaLoadOp.create(operands=indices, attributes=attributes))
        block.add_op(CommitOp.of(batch.ring))


@dataclass
class _Consumer:
    """Begins dots where they stand, and finishes them where something else needs them."""

    operands: Operands
    epilogue_operands: Mapping[tile.LoadOp, EpilogueOperand]
    mapping: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    under_way: list[tile.DotOp] = field(default_factory=list[tile.DotOp])
    left: dict[int, set[tile.DotOp]] = field(default_factory=dict[int, "set[tile.DotOp]"])

    def walk(self, ops: Sequence[Operation], block: Block) -> None:
        for op in ops:
            match op:
                case tile.LoadOp() if op in self.operands.batches:
                    if self.operands.batches[op].held:
                        self._take(self.operands.batches[op], block)
                case tile.LoadOp() if op in self.epilogue_operands:
                    self._lift(self.epilogue_operands[op], block)
                case tile.DotOp():
                    self._begin(op, block)
                case tile.ForOp():
                    self._finish(len(self.under_way), block)
                    self._loop(op, block)
                case tile.ProgramOp():
                    pass
                case _:
                    needed = [number for number, dot in enumerate(self.under_way, 1) if dot.out in op.operands]
                    # Nothing is under way from iteration to iteration.
                    self._finish(len(self.under_way) if isinstance(op, tile.YieldOp) else max(needed, default=0), block)
                    block.add_op(op.clone(self.mapping))

    def _loop(self, op: tile.ForOp, block: Block) -> None:
        indices, initial = ([self.mapping.get(v, v) for v in values] for values in (op.indices, op.initial))
        turns = tile.ForOp.make(op.bounds, indices, initial)
        block.add_op(turns)
        self.mapping.update(zip(op.block.args, turns.block.args, strict=True))
        self.walk(list(op.block.ops), turns.block)
        self.mapping.update(zip(op.results, turns.results, strict=True))
        self._release_held({inner for inner in op.walk() if isinstance(inner, tile.DotOp)}, block)

    def _take(self, batch: Batch, block: Block) -> None:
        block.add_op(WaitOp.of(batch.ring))
        for number, copy in enumerate(batch.copies):
            for load, type_ in copy.seen.items():
                slot = SlotOp.create(attributes=_numbered(ring=batch.ring, slot=number), result_types=[type_])
                block.add_op(slot)
                self.mapping[load.out] = slot.out
        self.left[id(batch)] = set(batch.dots)

    def _lift(self, epilogue_operand: EpilogueOperand, block: Block) -> None:
        self._finish(len(self.under_way), block)  # stages are released in the order in which they were brought
        attributes = {
            **_numbered(ring=epilogue_operand.ring, slot=epilogue_operand.slot),
            "part": epilogue_operand.part,
        }
        lift = RingToRegistersOp.create(attributes=attributes, result_types=[epilogue_operand.load.out.type])
        block.add_op(lift)
        self.mapping[epilogue_operand.load.out] = lift.out

    def _begin(self, dot: tile.DotOp, block: Block) -> None:
        for batch in self.operands.of(dot):
            if id(batch) not in self.left:
                self._take(batch, block)
        begun = WgmmaOp.create(operands=[self.mapping.get(o, o) for o in dot.operands], result_types=[dot.out.type])
        block.add_op(begun)
        self.mapping[dot.out] = begun.out
        self.under_way.append(dot)

    def _finish(self, count: int, block: Block) -> None:
        """Wait for the first so many of the dots that are under way, and release what only they read."""
        done, self.under_way = self.under_way[:count], self.under_way[count:]
        if not done:
            return
        # What only another dot was added to is in that one's registers.
        used = [dot for dot in done if any(not isinstance(use.operation, tile.DotOp) for use in dot.out.uses)]
        finish = WgmmaWaitOp.make([self.mapping[dot.out] for dot in used], len(self.under_way))
        block.add_op(finish)
        self.mapping.update(zip((dot.out for dot in used), finish.outs, strict=True))
        for batch in [batch for dot in done for batch in self.operands.of(dot) if not batch.held]:
            if id(batch) in self.left:
                self._forget(batch, set(done), block)
        self._release_held(set(done), block, inside=True)

    def _release_held(self, dots: set[tile.DotOp], block: Block, inside: bool = False) -> None:
        """What is held is released where it was taken: outside of loops."""
        for batch in {id(b): b for b in self.operands.batches.values() if b.held}.values():
            own = dots & batch.dots
            if inside:
                own = {dot for dot in own if dot.parent is batch.copies[0].load.parent}
            if own and id(batch) in self.left:
                self._forget(batch, own, block)

    def _forget(self, batch: Batch, dots: set[tile.DotOp], block: Block) -> None:
        self.left[id(batch)] -= dots
        if not self.left[id(batch)]:
            del self.left[id(batch)]
            block.add_op(ReleaseOp.of(batch.ring))
