"""Operands of wgmma that threads stage in shared memory themselves: what no copy brings as dots read it.

A tile that was computed, narrowed or turned over can be no right operand in registers, and no left one but as the
accumulators lie. Written to shared memory once, it is read from there by all dots, either way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.cp_async import CpAsyncOp
from weft.backends.nvidia.ir.dialect import VECTOR, WARPS, BarrierOp, set_integer, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.local_memory import FenceAsyncSharedOp, LocalOperandOp, LocalStoreOp
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.rings import SlotType
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.backends.nvidia.pipeline.staged_tiles import StagedTile, allocate_staged, staged_tiles, without_turns
from weft.backends.nvidia.pipeline.warp_group_dots import dots_of_warp_groups
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import turns_matrix

_GROUP_WARPS, _GROUP_ROWS = 4, 64
"""Of a warp group: its warps, and the rows that it multiplies."""
_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, collective_ops.ViewOp)


@dataclass(frozen=True)
class StageOperands(KernelPass):
    """Dots by wgmma of what threads store to shared memory: tiles that are computed, narrowed or transposed.

    %n = tile.map cast(%p) {bf16}               nvidia.local_store %p → slot 0 ; nvidia.cp_async %x[%i] → slot 1
    %t = tile.view %n (turned over)             nvidia.fence_async_shared
    %b = tile.gather %x[%i]               →     %a = nvidia.local_operand 0 (turned over) ; %b = nvidia.local_operand 1
    %c = tile.dot %t, %b, %acc                  %r = nvidia.wgmma %a, %b, %acc ; %c = nvidia.wgmma_wait %r

    A tile is staged where it is made, so that no registers hold it until the dot. Such dots may stand anywhere: in
    branches, in any loop and outside of all. Places are used again when the last dot that reads them has ended.
    """

    name: ClassVar[str] = "stage_operands"
    decides: ClassVar[bool] = True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        if (warps := _warps_of_loads(kernel)) is not None:
            set_integer(kernel, WARPS, warps)
        found = dots_of_warp_groups(kernel, target)
        if isinstance(found, Refused):
            return found
        _turn_last(found.dots)
        places = staged_tiles(kernel, found)
        if isinstance(places, Refused):
            return places
        staging = _Staging(places)
        staging.block(kernel.block)
        size = allocate_staged(kernel, list(places.values()))
        if size > target.shared_per_block:
            return Refused(f"its operands need {size} bytes of shared memory, a block has {target.shared_per_block}")
        set_launch(kernel, Launch(WARP * found.warps, size))
        _drop_dead(kernel)
        return None


def _warps_of_loads(kernel: tile.KernelOp) -> int | None:
    """How many warps multiply what a kernel of a graph loads in 16 bits, a warp group for each 64 rows."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    operands = [value.owner for dot in dots for value in (dot.a, dot.b)]
    if WARPS in kernel.attributes or not all(isinstance(op, tile.LoadOp) for op in operands):
        return None
    rows = max((tile.tile_type(dot.out).sizes[0] for dot in dots), default=0)
    return _GROUP_WARPS * -(-rows // _GROUP_ROWS)


def _turn_last(dots: Sequence[tile.DotOp]) -> None:
    """Have what is turned over and then narrowed be narrowed first."""
    for value in dict.fromkeys(operand for dot in dots for operand in (dot.a, dot.b)):
        cast = value.owner
        if not isinstance(cast, tile.MapOp) or narrowed_to(cast) is None:
            continue
        view = cast.args[0].owner
        if not isinstance(view, collective_ops.ViewOp) or not turns_matrix(view):
            continue
        block = cast.parent_block()
        assert block is not None
        sizes, dtype = tile.tile_type(view.value).sizes, tile.tile_type(cast.out).dtype
        first = tile.MapOp.create(
            operands=[view.value], attributes=dict(cast.attributes), result_types=[tile.TileType.of(sizes, dtype)]
        )
        last = collective_ops.ViewOp.create(
            operands=[first.results[0]], attributes=dict(view.attributes), result_types=[value.type]
        )
        block.insert_ops_before([first, last], cast)
        value.replace_all_uses_with(last.results[0])


@dataclass
class _Staging:
    """The walk through a kernel: tiles are staged where they are made, dots begun where they stand."""

    places: dict[SSAValue, StagedTile]
    read: bool = False
    """Whether threads may still read, by dots, what the next one would overwrite."""
    staged: bool = False
    """Whether anything was staged that not all threads have waited for."""
    under_way: dict[tile.DotOp, WgmmaOp] = field(default_factory=dict[tile.DotOp, WgmmaOp])

    def __post_init__(self) -> None:
        self.made: dict[Operation, list[StagedTile]] = {}
        for place in self.places.values():
            assert isinstance(place.source, OpResult)
            self.made.setdefault(place.source.op, []).append(place)

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            if isinstance(op, tile.DotOp):
                self._begin(op, block)
                continue
            needs = any(dot.out in op.operands for dot in self.under_way)
            if self.under_way and isinstance(op, _PURE) and op not in self.made and not needs:
                op.detach()
                block.insert_op_before(op, self._first())
                continue
            self._finish(op, block)
            for region in op.regions:
                staged = self.staged
                for inner in region.blocks:
                    self.read, self.staged = True, staged
                    self.block(inner)
                # What is in a region may not have run.
                self.read, self.staged = True, staged or self.staged
            after: Operation = op
            for place in self.made.get(op, ()):
                after = self._stage(place, after, block)

    def _first(self) -> Operation:
        """Where the ops of the dots that are under way begin."""
        op: Operation = next(iter(self.under_way.values()))
        while isinstance(op.prev_op, LocalOperandOp | FenceAsyncSharedOp):
            op = op.prev_op
        return op

    def _stage(self, place: StagedTile, after: Operation, block: Block) -> Operation:
        # A copy that no dot has waited for may still be on its way to where this one goes.
        waits = FenceAsyncSharedOp if any(each.width for each in self.places.values()) else BarrierOp
        ops: list[Operation] = [waits.create()] if self.read else []
        gather = place.source.owner
        if place.width and isinstance(gather, tile.GatherOp):
            stage, left = (AffineApplyOp.make(tile.Sizes((number,)), []) for number in (0, 1))
            masks = [] if gather.mask is None else [gather.mask]
            place.writer = CpAsyncOp.build(
                operands=[gather.pointer, gather.offsets, masks, stage.out, left.out],
                attributes={"slot": place.slot, "start": IntegerAttr(0, i64)},
            )
            set_integer(place.writer, VECTOR, place.width)
            ops += [stage, left, place.writer]
        else:
            place.writer = LocalStoreOp.make(place.source, place.slot, 0)
            ops.append(place.writer)
        block.insert_ops_after(ops, after)
        self.read, self.staged = False, True
        return ops[-1]

    def _begin(self, dot: tile.DotOp, block: Block) -> None:
        if self.staged:
            block.insert_op_before(FenceAsyncSharedOp.create(), dot)
            self.staged = False
        operands: list[SSAValue] = []
        for value in (dot.a, dot.b):
            base, turned = without_turns(value)
            if (place := self.places.get(base)) is None:
                operands.append(value)
                continue
            slot = place.slot
            staged = LocalOperandOp.make(
                SlotType.of(slot.sizes[::-1], 1 - slot.axis, slot.dtype) if turned else slot, 0
            )
            place.seen.append(staged)
            block.insert_op_before(staged, dot)
            operands.append(staged.out)
        if dot.accumulator is not None:
            before = dot.accumulator.owner
            under_way = self.under_way.get(before) if isinstance(before, tile.DotOp) else None
            operands.append(dot.accumulator if under_way is None else under_way.out)
        begun = WgmmaOp.create(operands=operands, result_types=[dot.out.type])
        block.insert_op_before(begun, dot)
        self.under_way[dot] = begun

    def _finish(self, before: Operation, block: Block) -> None:
        """Wait for all dots that are under way."""
        if not self.under_way:
            return
        for dot in self.under_way:
            dot.operands = [dot.a, dot.b]  # what they begin with, the begun ones have
        used = [dot for dot in self.under_way if dot.out.uses]
        wait = WgmmaWaitOp.make([self.under_way[dot].out for dot in used], 0)
        block.insert_op_before(wait, before)
        for dot, out in zip(used, wait.outs, strict=True):
            dot.out.replace_all_uses_with(out)
        for dot in self.under_way:
            for place in [place for v in (dot.a, dot.b) if (place := self.places.get(without_turns(v)[0])) is not None]:
                place.until.append(wait)
        for dot in self.under_way:
            dot.detach()
            dot.erase()
        self.under_way, self.read = {}, True


def _drop_dead(kernel: tile.KernelOp) -> None:
    for op in reversed(list(kernel.walk())):
        if isinstance(op, (*_PURE, tile.GatherOp)) and not op.results[0].uses:
            op.detach()
            op.erase()
