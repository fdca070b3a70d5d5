"""Tiles that threads stage in shared memory for dots: which ones, how they lie there, and where.

The first half decides, before anything is rewritten; `allocate_staged` comes last, when it is known where each tile is
written and by when all dots have read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.alignment import computed_access, pointer_dtype
from weft.backends.nvidia.ir.kernel_passes import Refused
from weft.backends.nvidia.ir.local_memory import LocalOperandOp
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.register_operands import register_operand
from weft.backends.nvidia.ir.rings import LINE, SlotType
from weft.backends.nvidia.ir.wgmma import WgmmaWaitOp
from weft.backends.nvidia.layout.use_tensor_cores import narrow_type
from weft.backends.nvidia.pipeline.warp_group_dots import WarpGroupDots
from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.axis_facts import AxisFacts
from weft.tile.memory_groups import MemoryGroups
from weft.tile.view_axes import turns_matrix

_LEAST_COPY, _MOST_COPY = 4, 16
"""Bytes that a thread copies at once by `cp.async`."""


@dataclass
class StagedTile:
    """A tile in shared memory, what is staged there, and the ops that write and read it."""

    source: SSAValue
    slot: SlotType
    width: int = 0
    """Elements that a thread copies at once, where memory has the tile as it is to lie."""
    writer: Operation | None = None
    seen: list[LocalOperandOp] = field(default_factory=list[LocalOperandOp])
    until: list[WgmmaWaitOp] = field(default_factory=list[WgmmaWaitOp])


def without_turns(value: SSAValue) -> tuple[SSAValue, bool]:
    """What a value is but for being turned over, and whether it is."""
    turned = False
    while isinstance(value.owner, collective_ops.ViewOp) and turns_matrix(value.owner):
        value, turned = value.owner.value, not turned
    return value, turned


def staged_tiles(kernel: tile.KernelOp, found: WarpGroupDots) -> dict[SSAValue, StagedTile] | Refused:
    """Where each operand is staged that is not read from registers, by the tile that it is but for turns."""
    facts, changed, unit = AxisFacts(kernel), _changed(kernel), found.unit
    places: dict[SSAValue, StagedTile] = {}
    for dot in found.dots:
        dtype, shape = narrow_type(dot, unit), (*tile.tile_type(dot.out).sizes, tile.tile_type(dot.a).sizes[1])
        if dtype is None or not unit.reads_any_way(dtype):
            return Refused("a dot is not of 16-bit operands")
        if len(shape) != 3 or not unit.makes(dtype, tile.tile_type(dot.out).dtype, shape, found.groups):
            return Refused(f"a dot is none of {found.groups} warp groups")
        for value in (dot.a, dot.b):
            base, _ = without_turns(value)
            if base in places or (value is dot.a and _stays_in_registers(value, dtype)):
                continue
            place = _place(base, dtype, facts, changed)
            if place is None:
                return Refused("an operand is none that threads can stage in shared memory")
            places[base] = place
    return places


def _stays_in_registers(value: SSAValue, dtype: DType) -> bool:
    """Whether a left operand is where dots leave theirs: it was computed of one, and nothing else reads it."""
    return register_operand(value, tile.DotOp) == dtype and _is_of_dots(value)


def _is_of_dots(value: SSAValue) -> bool:
    left, seen = [value], set[SSAValue]()
    found = False
    while left:
        current = left.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current.owner, tile.MapOp):
            sizes = tile.tile_type(current).sizes
            left += [arg for arg in current.owner.args if tile.tile_type(arg).sizes == sizes]
        elif isinstance(current.owner, tile.GatherOp):
            return False
        found |= isinstance(current, BlockArgument) or isinstance(current.owner, tile.DotOp | tile.ForOp)
    return found


def _changed(kernel: tile.KernelOp) -> Callable[[SSAValue], bool]:
    """Whether the memory of a pointer is written in the kernel: a copy from it might come too late."""
    groups = MemoryGroups.of_kernel(kernel)
    writes = (tile.ScatterOp, tile.StoreOp, pointer_ops.AtomicOp)
    targets = [op.pointer for op in kernel.walk() if isinstance(op, writes)]
    return lambda pointer: any(groups.meet(pointer, target) for target in targets)


def _place(base: SSAValue, dtype: DType, facts: AxisFacts, changed: Callable[[SSAValue], bool]) -> StagedTile | None:
    """A place for a tile: it lies along the axis that its elements come along, if that is whole lines."""
    if not isinstance(base, OpResult):
        return None
    if isinstance(base.op, tile.LoadOp):
        return _loaded(base.op, dtype)
    source: SSAValue = base
    wide = base.op.args[0] if isinstance(base.op, tile.MapOp) and narrowed_to(base.op) == dtype else None
    if isinstance(wide, OpResult) and not isinstance(wide.op, tile.DotOp):  # of a dot there is nothing before it ends
        source = wide  # it is rounded as it is staged
    axis, width, gather = 1, 0, source.owner
    if isinstance(gather, tile.GatherOp):
        access = computed_access(facts, gather)
        axis = 1 if access.axis is None else access.axis
        copied = source is base and _is_copied(gather, dtype) and not changed(gather.pointer)
        if copied and access.axis is not None:
            width = access.widths[access.axis]
    shape = tile.tile_type(base).sizes
    if not _is_slot(shape, axis, dtype):
        axis, width = 1 - axis, 0
    if not _is_slot(shape, axis, dtype):
        return None
    width = width if width * dtype.bytes >= _LEAST_COPY else 0
    return StagedTile(source, SlotType.of(shape, axis, dtype), min(width, _MOST_COPY // dtype.bytes))


def _loaded(load: tile.LoadOp, dtype: DType) -> StagedTile | None:
    """A place for what is part of a tensor, whose rows begin anywhere: it lies there as it does in memory."""
    shape = tile.tile_type(load.out).sizes
    if pointer_dtype(load) != dtype or len(shape) != 2:
        return None
    along = next((axis for axis in (1, 0) if load.strides.data[axis] == 1), 1)
    for axis in (along, 1 - along):
        if _is_slot(shape, axis, dtype):
            return StagedTile(load.out, SlotType.of(shape, axis, dtype))
    return None


def _is_slot(shape: Sequence[int], axis: int, dtype: DType) -> bool:
    return shape[axis] * dtype.bytes % LINE == 0 and shape[1 - axis] % 8 == 0


def _is_copied(gather: tile.GatherOp, dtype: DType) -> bool:
    """Whether memory has a tile as it is to lie, with zeros beyond, and nothing but dots reads it."""
    if pointer_dtype(gather) != dtype or (gather.mask is not None and from_attribute(gather.other) != 0):
        return False
    left = [gather.out]
    while left:
        for use in left.pop().uses:
            if isinstance(use.operation, collective_ops.ViewOp) and turns_matrix(use.operation):
                left.append(use.operation.out)
            elif not isinstance(use.operation, tile.DotOp):
                return False
    return True


def allocate_staged(kernel: tile.KernelOp, places: Sequence[StagedTile]) -> int:
    """Give places that are read at the same time different memory; returns how much all take."""
    order = {op: number for number, op in enumerate(kernel.walk())}
    spans = [(*_span(place, order), place) for place in places]
    taken: list[tuple[int, int, int, int]] = []
    for first, last, place in sorted(spans, key=lambda span: span[0]):
        meeting = sorted((start, end) for start, end, since, until in taken if since <= last and first <= until)
        start = 0
        for low, high in meeting:
            if start + place.slot.bytes <= low:
                break
            start = max(start, high)
        taken.append((start, start + place.slot.bytes, first, last))
        for op in (place.writer, *place.seen):
            if op is not None:
                op.attributes["start"] = IntegerAttr(start, i64)
    return max((end for _, end, _, _ in taken), default=0)


def _span(place: StagedTile, order: dict[Operation, int]) -> tuple[int, int]:
    """From the op that stages a tile to the one by which all dots have ended that read it, in all turns of loops."""
    assert place.writer is not None
    block, last = place.writer.parent_block(), order[place.writer]
    assert block is not None
    for wait in place.until:
        around = block.find_ancestor_op_in_block(wait)
        assert around is not None
        last = max(last, *(order[op] for op in around.walk()))
    return order[place.writer], last
