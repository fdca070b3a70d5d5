"""The cp.async pipeline: threads copy operands that are gathered to shared memory, some iterations ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.alignment import computed_access, pointer_dtype
from weft.backends.nvidia.ir.cp_async import CpAsyncCommitOp, CpAsyncOp, CpAsyncWaitOp, StagedOp
from weft.backends.nvidia.ir.dialect import VECTOR, BarrierOp, set_integer, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.rings import LINE, SlotType
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.backends.nvidia.matmul_unit import MatmulUnit
from weft.backends.nvidia.pipeline.warp_group_dots import dots_of_warp_groups
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, floordiv, mod, substitute, symbol
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.axis_facts import AxisFacts
from weft.tile.view_axes import turns_matrix

_MOST_STAGES, _LEAST_STAGES, _LEAST_BYTES = 4, 3, 4
_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, collective_ops.ViewOp, pointer_ops.IndexOp, AffineApplyOp)


@dataclass
class _Operand:
    """What a dot reads: a gather, the slot that it is copied to, and how many elements a thread copies at once."""

    gather: tile.GatherOp
    slot: SlotType
    width: int
    start: int = 0


@dataclass(frozen=True)
class PipelineCpAsync(KernelPass):
    """The cp.async pipeline: threads copy operands that are gathered to shared memory, some iterations ahead.

    %c = tile.for %k (%acc) {                             nvidia.cp_async of iterations 0, 1, 2, each a group
      %a = tile.gather %x[%i]                             %c = tile.for %k (%acc) {
      %b = tile.gather %w[%j]                       →       nvidia.cp_async_wait ; %a, %b = nvidia.staged turn % 4
      tile.yield tile.dot %a, %b, %acc }                    %r = nvidia.wgmma %a, %b, %acc
                                                            nvidia.cp_async of iteration + 3
                                                            tile.yield nvidia.wgmma_wait %r }

    All warps do all of it, so that such a loop may stand anywhere: in branches, and in loops that end when they find.
    """

    name: ClassVar[str] = "pipeline_cp_async"
    decides: ClassVar[bool] = True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        multiplied = dots_of_warp_groups(kernel, target)
        if isinstance(multiplied, Refused):
            return multiplied
        facts = AxisFacts(kernel)
        loops = list(dict.fromkeys(dot.parent_op() for dot in multiplied.dots))
        found: list[tuple[tile.ForOp, dict[tile.GatherOp, _Operand]]] = []
        for loop in loops:
            operands = (
                _operands(loop, facts, multiplied.unit, multiplied.groups) if isinstance(loop, tile.ForOp) else None
            )
            if operands is None or not isinstance(loop, tile.ForOp):
                return Refused("threads cannot copy the operands of a dot ahead")
            found.append((loop, operands))
        largest = max(sum(o.slot.bytes for o in operands.values()) for _, operands in found)
        stages = min(_MOST_STAGES, target.shared_per_block // largest)
        if stages < _LEAST_STAGES:
            return Refused(f"there is no room for {_LEAST_STAGES} stages of its operands")
        for loop, operands in found:
            start = 0
            for operand in operands.values():
                operand.start, start = start, start + stages * operand.slot.bytes
            _Staging(loop, operands, stages).rewrite()
        set_launch(kernel, Launch(WARP * multiplied.warps, stages * largest))
        return None


def _operands(
    loop: tile.ForOp, facts: AxisFacts, unit: MatmulUnit, groups: int
) -> dict[tile.GatherOp, _Operand] | None:
    """The operands of a loop's dots, if threads can copy all of them ahead."""
    ops = list(loop.block.ops)
    if any(op.regions or isinstance(op, tile.ScatterOp | tile.StoreOp | pointer_ops.AtomicOp) for op in ops):
        return None
    operands: dict[tile.GatherOp, _Operand] = {}
    for dot in [op for op in ops if isinstance(op, tile.DotOp)]:
        for value in (dot.a, dot.b):
            gather, _ = _gathered(value)
            operand = None if gather is None or gather.parent is not loop.block else _operand(loop, gather, facts)
            if gather is None or operand is None:
                return None
            operands[gather] = operand
        (rows, columns), depth = tile.tile_type(dot.out).sizes, tile.tile_type(dot.a).sizes[1]
        dtype = operands[next(iter(operands))].slot.dtype
        if not unit.makes(dtype, tile.tile_type(dot.out).dtype, (rows, columns, depth), groups):
            return None
        if any(not isinstance(use.operation, tile.DotOp | tile.YieldOp) for use in dot.out.uses):
            return None
    return operands if len({operand.slot.dtype for operand in operands.values()}) == 1 else None


def _gathered(value: SSAValue) -> tuple[tile.GatherOp | None, bool]:
    """The gather that a value is, and whether it is turned."""
    turned = isinstance(value, OpResult) and isinstance(value.op, collective_ops.ViewOp) and turns_matrix(value.op)
    source = value.owner.operands[0] if turned and isinstance(value.owner, Operation) else value
    return (source.owner if isinstance(source.owner, tile.GatherOp) else None), turned


def _operand(loop: tile.ForOp, gather: tile.GatherOp, facts: AxisFacts) -> _Operand | None:
    dtype, shape = pointer_dtype(gather), tile.tile_type(gather.out).sizes
    access = computed_access(facts, gather)
    if dtype.name not in ("bf16", "f16") or len(shape) != 2 or access.axis is None:
        return None
    if gather.mask is not None and from_attribute(gather.other) != 0:
        return None
    width = access.widths[access.axis]
    fits = shape[access.axis] * dtype.bytes % LINE == 0 and shape[1 - access.axis] % 8 == 0
    if not fits or width * dtype.bytes < _LEAST_BYTES or not _is_ahead(loop, gather):
        return None
    for use in gather.out.uses:
        turned = isinstance(use.operation, collective_ops.ViewOp) and turns_matrix(use.operation)
        users = [u.operation for u in use.operation.results[0].uses] if turned else [use.operation]
        if not all(isinstance(user, tile.DotOp) for user in users):
            return None
    return _Operand(gather, SlotType.of(shape, access.axis, dtype), width)


def _is_ahead(loop: tile.ForOp, gather: tile.GatherOp) -> bool:
    """Whether places are known turns ahead: nothing of them is carried from iteration to iteration, or read."""
    return all(isinstance(op, _PURE) for op in _behind(loop, gather)) and not any(
        argument in op.operands for op in (*_behind(loop, gather), gather) for argument in loop.block.args[1:]
    )


def _behind(loop: tile.ForOp, gather: tile.GatherOp) -> list[Operation]:
    """The ops of an iteration that the places of a gather are computed by, in order."""
    found: set[Operation] = set()
    left: list[SSAValue] = list(gather.operands)
    while left:
        value = left.pop()
        if isinstance(value, OpResult) and value.op.parent is loop.block and value.op not in found:
            found.add(value.op)
            left += value.op.operands
    return [op for op in loop.block.ops if op in found]


@dataclass
class _Staging:
    loop: tile.ForOp
    operands: dict[tile.GatherOp, _Operand]
    stages: int

    def rewrite(self) -> None:
        loop, block = self.loop, self.loop.block
        parent = loop.parent_block()
        assert parent is not None
        ahead = self.stages - 1
        before: list[Operation] = [BarrierOp.create()]  # others may still read what was staged last
        for turn in range(ahead):
            before += self._copies(turn, None)
        parent.insert_ops_before(before, loop)
        # Copies beyond the last iteration bring zeros: what is staged next must not meet them.
        parent.insert_ops_after([CpAsyncWaitOp.create(attributes={"pending": IntegerAttr(0, i64)})], loop)
        dots = [op for op in block.ops if isinstance(op, tile.DotOp)]
        number = self._index(floordiv(symbol("d0") - self._bound(0), self._bound(2)), block.args[0])
        stage = AffineApplyOp.make(tile.Sizes((mod(symbol("d0"), self.stages),)), [number.out])
        awaited = CpAsyncWaitOp.create(attributes={"pending": IntegerAttr(ahead - 1, i64)})
        block.insert_ops_before([number, stage, awaited], dots[0])
        begun = {dot: self._begin(dot, stage.out) for dot in dots}
        sums = [dot for dot in dots if any(isinstance(use.operation, tile.YieldOp) for use in dot.out.uses)]
        finish = WgmmaWaitOp.make([begun[dot].out for dot in sums], 0)
        last = block.last_op
        assert last is not None
        block.insert_ops_before([*self._copies(ahead, block.args[0]), finish], last)
        for dot, out in zip(sums, finish.outs, strict=True):
            last.operands = [out if operand is dot.out else operand for operand in last.operands]
        for dot in reversed(dots):
            dot.out.replace_all_uses_with(begun[dot].out)
            dot.detach()
            dot.erase()
        _drop_dead(block)

    def _begin(self, dot: tile.DotOp, stage: SSAValue) -> WgmmaOp:
        block = dot.parent_block()
        assert block is not None
        slots: list[SSAValue] = []
        for value in (dot.a, dot.b):
            gather, turned = _gathered(value)
            assert gather is not None
            operand = self.operands[gather]
            slot = operand.slot
            type_ = SlotType.of(slot.sizes[::-1], 1 - slot.axis, slot.dtype) if turned else slot
            attributes = {"start": IntegerAttr(operand.start, i64)}
            staged = StagedOp.create(operands=[stage], attributes=attributes, result_types=[type_])
            block.insert_op_before(staged, dot)
            slots.append(staged.out)
        totals = [] if dot.accumulator is None else [dot.accumulator]
        begun = WgmmaOp.create(operands=[*slots, *totals], result_types=[dot.out.type])
        block.insert_op_before(begun, dot)
        return begun

    def _bound(self, which: int) -> Size:
        """A bound of the loop, with d1, d2, … for the loop's indices."""
        renamed: dict[str, Size] = {f"d{i}": symbol(f"d{i + 1}") for i in range(len(self.loop.indices))}
        return substitute(self.loop.bounds.data[which], renamed)

    def _index(self, value: Size, place: SSAValue) -> AffineApplyOp:
        """An expression over d0, which is `place`, and the loop's indices."""
        return AffineApplyOp.make(tile.Sizes((value,)), [place, *self.loop.indices])

    def _copies(self, turns: int, place: SSAValue | None) -> list[Operation]:
        """The copies of an iteration so many after `place`, or after the loop's start."""
        lower, upper, step = map(self._bound, range(3))
        start = self.loop.indices[0]
        here: Size = lower if place is None else symbol("d0")
        at = self._index(here + turns * step, place or start)
        left = self._index(upper - here - turns * step, place or start)
        stage = self._index(mod(floordiv(here - lower, step) + turns, self.stages), place or start)
        ops: list[Operation] = [at, left, stage]
        mapping: dict[SSAValue, SSAValue] = {self.loop.block.args[0]: at.out}
        copied: set[Operation] = set()
        for gather, operand in self.operands.items():
            for op in _behind(self.loop, gather):
                if op not in copied:
                    copied.add(op)
                    ops.append(op.clone(mapping))
            places = [mapping.get(value, value) for value in gather.operands]
            masks = [] if gather.mask is None else [places[2]]
            copy = CpAsyncOp.build(
                operands=[places[0], places[1], masks, stage.out, left.out],
                attributes={"slot": operand.slot, "start": IntegerAttr(operand.start, i64)},
            )
            set_integer(copy, VECTOR, operand.width)
            ops.append(copy)
        return [*ops, CpAsyncCommitOp.create()]


def _drop_dead(block: Block) -> None:
    for op in reversed(list(block.ops)):
        pure: Sequence[type[Operation]] = (*_PURE, tile.GatherOp)
        if isinstance(op, tuple(pure)) and not op.results[0].uses:
            op.detach()
            op.erase()
