"""The operands of dots as TMA brings them: which loads come together, and which ring they go through.

Loads that the dots of one block read together are a batch: each iteration brings all of them to one stage of a ring,
and batches of the same shapes, in several loops, share a ring. What is loaded outside of the loops that read it is
brought once for all their iterations, through a ring of one stage, and what is loaded when they are done through the
same. A tile that dots read both as it lies and transposed is brought once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import Block, OpResult, SSAValue

from weft.backends.nvidia.code import TensorMap
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.index_slices import ops_behind
from weft.backends.nvidia.ir.programmatic_launch import is_fixed
from weft.backends.nvidia.ir.register_operands import register_operand
from weft.backends.nvidia.ir.rings import LINE, SlotType
from weft.backends.nvidia.ir.tma_boxes import tma_box_of
from weft.backends.nvidia.matmul_unit import MatmulUnit
from weft.ir.expr import Size
from weft.ir.types import DType
from weft.tile import control_flow
from weft.tile import dialect as tile

_MOST_LINES = 256


@dataclass(frozen=True)
class Copy:
    """A load as TMA does it, and the others that it does for."""

    load: tile.LoadOp
    map: TensorMap
    slot: SlotType
    coordinates: tuple[Size, ...]
    """Those of all its pieces, one after the other."""
    seen: dict[tile.LoadOp, SlotType] = field(default_factory=dict[tile.LoadOp, SlotType], compare=False)
    """All loads that the slot is for, and how each of them sees it."""
    sharers: int = 1
    """The blocks that each bring a part of it to all of them."""

    def brings_what(self, other: Copy) -> bool:
        """Whether another copy would bring the same."""
        here, there = self.load, other.load
        same = self.map == other.map and self.coordinates == other.coordinates
        return same and here.parent is there.parent and tuple(here.indices) == tuple(there.indices)


@dataclass
class Batch:
    """Copies that come together, for the dots that read them; `held` ones come once for several loops, `early` ones
    before the kernel ahead has ended."""

    copies: list[Copy]
    dots: set[tile.DotOp]
    held: bool
    early: bool = False
    ring: int = 0

    @property
    def shapes(self) -> tuple[object, ...]:
        """What its slots take, whichever way dots see them."""
        return tuple((copy.slot.dtype, copy.slot.lines, copy.slot.blocks) for copy in self.copies)

    @property
    def is_brief(self) -> bool:
        """Whether nothing else is brought between its loads and the last dot that reads them."""
        (block,) = {load.parent for load in self.loads}
        assert block is not None
        ops = list(block.ops)
        if any(dot.parent is not block for dot in self.dots):
            return False
        first, last = min(map(ops.index, self.loads)), max(map(ops.index, self.dots))
        return not any(op.regions for op in ops[first:last])

    @property
    def contents(self) -> tuple[object, ...]:
        """What must be equal of batches that share a ring."""
        return self.shapes if self.is_brief else tuple((copy.map, copy.slot) for copy in self.copies)

    def is_done_before(self, load: tile.LoadOp) -> bool:
        """Whether all dots that read it stand before a load, or in loops before it."""
        block = load.parent
        assert block is not None
        found = [block.find_ancestor_op_in_block(dot) for dot in self.dots]
        return all(op is not None and op.is_before_in_block(load) for op in found)

    @property
    def loads(self) -> set[tile.LoadOp]:
        return {copy.load for copy in self.copies}


@dataclass
class Operands:
    """All batches of a kernel by the loads in them, and the slots of the stages of each ring."""

    batches: dict[tile.LoadOp, Batch] = field(default_factory=dict[tile.LoadOp, Batch])
    rings: list[tuple[SlotType, ...]] = field(default_factory=list[tuple[SlotType, ...]])
    held: list[bool] = field(default_factory=list[bool])

    @property
    def starts_early(self) -> bool:
        """Whether anything comes before the kernel ahead has ended."""
        return any(batch.early for batch in self.batches.values())

    @property
    def dtype(self) -> DType:
        """What dots read: of 8-bit floats, either kind."""
        return self.rings[0][0].dtype

    def any_in(self, loop: tile.ForOp) -> bool:
        """Whether a loop brings anything."""
        return any(op in self.batches for op in loop.walk())

    def of(self, dot: tile.DotOp) -> list[Batch]:
        """The batches that a dot reads."""
        return list({id(batch): batch for batch in self.batches.values() if dot in batch.dots}.values())


def operands_of(
    kernel: tile.KernelOp, dots: Sequence[tile.DotOp], unit: MatmulUnit, early: bool = False
) -> Operands | None:
    """How the operands of dots come to slots, which a unit reads; None where TMA cannot bring them.

    A left operand may also be in registers, if it is narrowed to the type of the right one. Where there is time to gain
    by what comes `early`, it does not come together with what does not.
    """
    copies: dict[tile.LoadOp, Copy] = {}
    for dot in dots:
        for value in (dot.a, dot.b):
            if isinstance(value, OpResult) and isinstance(value.op, tile.LoadOp) and value.op not in copies:
                copy = _as_copy(kernel, value.op)
                if copy is None or any(not isinstance(use.operation, tile.DotOp) for use in value.uses):
                    return None
                found = next((each for each in copies.values() if each.brings_what(copy)), copy)
                found.seen[value.op] = copy.slot
                copies[value.op] = found
    if not copies or len({_mixed_with(copy.slot.dtype) for copy in copies.values()}) != 1:
        return None
    dtype = next(iter(copies.values())).slot.dtype
    for dot in dots:
        if not _is_load(dot.b) or not (_is_load(dot.a) or register_operand(dot.a, tile.DotOp) == dtype):
            return None
        if not (
            unit.reads_any_way(dtype) or all(_runs_along(copies, value, k) for value, k in ((dot.a, 1), (dot.b, 0)))
        ):
            return None
    weights = {copy.load for copy in copies.values() if early and _are_weights(kernel, copy.load, dots)}
    return _in_rings(_batches(list({id(copy): copy for copy in copies.values()}.values()), weights))


def _runs_along(copies: dict[tile.LoadOp, Copy], value: SSAValue, axis: int) -> bool:
    """Whether an operand in a slot lies there with its elements along an axis side by side."""
    load = value.owner
    return isinstance(load, tile.LoadOp) and copies[load].seen[load].axis == axis


def _is_load(value: SSAValue) -> bool:
    return isinstance(value, OpResult) and isinstance(value.op, tile.LoadOp)


def _are_weights(kernel: tile.KernelOp, load: tile.LoadOp, dots: Sequence[tile.DotOp]) -> bool:
    """Whether a load brings what stays as it is, of which every program has a part, to dots of the same rows.

    A kernel ahead may still write numbers that say where loads are, or how many programs there are.
    """
    if kernel.limit is not None or any(isinstance(op, tile.NumberOp) for op in kernel.walk()):
        return False
    if len({dot.a for dot in dots}) > 1 or not is_fixed(kernel, load.pointer):
        return False
    axes = {index.owner.axis.value.data for index in _places(load) if isinstance(index.owner, tile.ProgramOp)}
    return all(size == 1 or axis in axes for axis, size in enumerate(kernel.grid.data))


def _places(load: tile.LoadOp) -> list[SSAValue]:
    """What says where a load is: its own indices, and those that its loops begin and end by."""
    loops = {index.owner.parent_op() for index in load.indices if isinstance(index.owner, Block)}
    return [*load.indices, *(index for loop in loops if isinstance(loop, tile.ForOp) for index in loop.indices)]


def _batches(copies: Sequence[Copy], early_ones: set[tile.LoadOp]) -> list[Batch]:
    batches: list[Batch] = []
    for copy in copies:
        uses = [use.operation for load in copy.seen for use in load.out.uses]
        dots = {user for user in uses if isinstance(user, tile.DotOp)}
        held = any(dot.parent is not copy.load.parent for dot in dots)
        early = copy.load in early_ones
        together = [b for b in batches if not held and not b.held and b.early == early and b.dots & dots]
        batch = Batch([copy], dots, held, early)
        for other in together:
            batch = Batch([*other.copies, *batch.copies], other.dots | batch.dots, held, early)
            batches.remove(other)
        batches.append(batch)
    return batches


def _mixed_with(dtype: DType) -> object:
    """What tells types apart that no dot takes together: of one byte, floats go with floats."""
    return (dtype.bytes, dtype.kind) if dtype.bytes == 1 else dtype


def _stretch(load: tile.LoadOp) -> tuple[Block, int]:
    """The block of a load, and how many loops of it stand before."""
    block = load.parent
    assert block is not None
    loops = 0
    for op in block.ops:
        if op is load:
            break
        loops += bool(op.regions)
    return block, loops


def _in_rings(batches: Sequence[Batch]) -> Operands:
    operands = Operands()
    numbers: dict[object, int] = {}
    before: Counter[object] = Counter()
    holding: list[Batch] = []
    """The last batch of each ring of what is held."""
    for batch in batches:
        if batch.held and (done := next((each for each in holding if _follows(batch, each)), None)) is not None:
            holding[holding.index(done)] = batch
            batch.ring = done.ring
            operands.batches.update((load, batch) for copy in batch.copies for load in copy.seen)
            continue
        # Between loops a ring gives one batch: a second with the same contents, taken before the first is released, has
        # a ring of its own.
        place = (batch.contents, batch.early, *_stretch(batch.copies[0].load))
        key = id(batch) if batch.held else (batch.contents, batch.early, before[place])
        before[place] += 1
        if key not in numbers:
            numbers[key] = len(operands.rings)
            operands.rings.append(tuple(copy.slot for copy in batch.copies))
            operands.held.append(batch.held)
        batch.ring = numbers[key]
        holding += [batch] if batch.held else []
        operands.batches.update((load, batch) for copy in batch.copies for load in copy.seen)
    return operands


def _follows(batch: Batch, earlier: Batch) -> bool:
    """Whether what is held can take the place of what was held before."""
    return batch.shapes == earlier.shapes and all(map(earlier.is_done_before, batch.loads))


def _as_copy(kernel: tile.KernelOp, op: tile.LoadOp) -> Copy | None:
    """A load as boxes of a tensor, as wide as a line."""
    shape, dtype = tile.tile_type(op.out).sizes, pointer_dtype(op)
    parts = [tma_box_of(kernel, op, shape, piece) for piece in range(op.pieces)]
    part = parts[0]
    if part is None or shape[part.inner] * dtype.bytes % LINE or ops_behind(op.indices) is None:
        return None
    if op.piece_axis is not None and op.piece_axis.value.data == part.inner:
        return None
    box = (LINE // dtype.bytes, shape[1 - part.inner] // op.pieces)
    if box[1] > _MOST_LINES or box[1] % 8 or {each and each.map(box) for each in parts} != {part.map(box)}:
        return None
    coordinates = tuple(place for each in parts if each is not None for place in each.coordinates)
    return Copy(op, part.map(box), SlotType.of(shape, part.inner, dtype), coordinates)


def blocks_of(kernel: tile.KernelOp) -> list[Block] | None:
    """The kernel's block and those of its loops; None if anything else decides what runs."""
    if any(isinstance(op, control_flow.IfOp | control_flow.WhileOp) for op in kernel.walk()):
        return None
    return [kernel.block, *(op.block for op in kernel.walk() if isinstance(op, tile.ForOp))]
