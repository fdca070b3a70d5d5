"""Pointers and masks of kernels that people write → parts of tensors, where TMA can move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.dialects.builtin import IndexType, StringAttr
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.tma_boxes import UNBOUNDED, tma_box_of
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Size, addends, is_nonnegative, maximum, minimum, split_multiple, substitute, symbol, symbols_of
from weft.ir.types import i64
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.affine import Affine, Affines, Condition
from weft.tile.memory_groups import MemoryGroups
from weft.tile.view_axes import axes_of, turns_matrix

_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, tile.GatherOp, collective_ops.ViewOp, pointer_ops.IndexOp)


@dataclass(frozen=True)
class RaisePointers(KernelPass):
    """Pointers and masks of kernels that people write → parts of tensors, where TMA can move them.

    %o = pid*128*%stride + i*%stride + 64*%k + j           %a = tile.load %x[128*pid, 64*%k] of a tensor of %M x %K,
    %a = tile.gather %x[%o] where 128*pid + i < %M    →          rows %stride apart
         and 64*%k + j < %K
    %c = tile.dot %a, …                                    %c = tile.dot %a, …

    What dots read and where their results go is raised; what no kernel argument says (sizes that were read, say)
    stays as it is. A mask gives the side of the tensor, and where along it the tile begins. Rows beyond the end that
    are taken from elsewhere (`% M`) are left out instead, if nothing of them is ever written.
    """

    name: ClassVar[str] = "raise_pointers"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if not MemoryGroups.of_kernel(kernel).written:
            return Refused("accesses of graphs are parts of tensors")
        dots = any(isinstance(op, tile.DotOp) for op in kernel.walk())
        return True if dots else Refused("it has no dot of tiles")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        groups = MemoryGroups.of_kernel(kernel)
        dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
        raising = _Raising(kernel, groups)
        for dot in dots:
            for number in range(2):
                raising.operand(dot, number)
        for op in [op for op in kernel.walk() if isinstance(op, tile.ScatterOp)]:
            raising.result(op)
        for op in reversed(list(kernel.walk())):
            if isinstance(op, _PURE) and not op.results[0].uses:
                op.detach()
                op.erase()


@dataclass
class _Places:
    """An access as a part of a tensor: all over the symbols of scalars."""

    offset: Size
    strides: tuple[Size, ...]
    sides: tuple[Size, ...]
    starts: tuple[Size, ...]


@dataclass
class _Raising:
    kernel: tile.KernelOp
    groups: MemoryGroups
    affines: Affines = field(default_factory=Affines)
    loads: dict[tuple[tile.GatherOp, bool], tile.LoadOp] = field(
        default_factory=dict[tuple[tile.GatherOp, bool], tile.LoadOp]
    )
    indices: dict[tuple[SSAValue, Operation], SSAValue] = field(
        default_factory=dict[tuple[SSAValue, Operation], SSAValue]
    )
    """Scalars as indices, before an op: a tile that is read as it lies and turned has the same."""

    def operand(self, dot: tile.DotOp, number: int) -> None:
        """What a dot reads: a gather, or one that is turned."""
        value, turned = dot.operands[number], False
        if isinstance(value, OpResult) and isinstance(value.op, collective_ops.ViewOp) and turns_matrix(value.op):
            value, turned = value.op.value, True
        gather = value.op if isinstance(value, OpResult) else None
        if not isinstance(gather, tile.GatherOp) or not self._is_only_read(gather.pointer):
            return
        if (gather, turned) not in self.loads:
            load = self._load(gather, turned)
            if load is None:
                return
            self.loads[gather, turned] = load
        dot.operands[number] = self.loads[gather, turned].out

    def _load(self, gather: tile.GatherOp, turned: bool) -> tile.LoadOp | None:
        shape = tile.tile_type(gather.out).sizes
        if gather.mask is not None and from_attribute(gather.other) != 0:
            return None
        places = self._places(gather, gather.out)
        if places is None:
            return None
        if turned:
            shape = shape[::-1]
            places = _Places(places.offset, places.strides[::-1], places.sides[::-1], places.starts[::-1])
        dtype = tile.tile_type(gather.out).dtype
        operands, attributes = self._described(places, shape, gather)
        load = tile.LoadOp.create(
            operands=[gather.pointer, *operands],
            attributes=attributes,
            result_types=[tile.TileType.of(shape, dtype)],
        )
        return load if self._put(load, gather, shape) is not None else None

    def result(self, op: tile.ScatterOp) -> None:
        """What is written, if by nothing else, and read by nothing."""
        shape = tile.tile_type(op.value).sizes
        others = [
            other
            for other in self.kernel.walk()
            if isinstance(other, tile.GatherOp | tile.LoadOp | tile.ScatterOp | tile.StoreOp | pointer_ops.AtomicOp)
            and other is not op
        ]
        if (
            op.unordered is None
            or op.pointer.owner is not self.kernel.block
            or any(self.groups.meet(op.pointer, other.pointer) for other in others)
        ):
            return
        places = self._places(op, None) if shape == tile.tile_type(op.offsets).sizes else None
        if places is None:
            return
        operands, attributes = self._described(places, shape, op)
        store = tile.StoreOp.create(operands=[op.value, op.pointer, *operands], attributes=attributes)
        if self._put(store, op, shape) is not None:
            op.detach()
            op.erase()

    def _is_only_read(self, pointer: SSAValue) -> bool:
        if pointer.owner is not self.kernel.block:
            return False
        writers = (
            op for op in self.kernel.walk() if isinstance(op, tile.ScatterOp | tile.StoreOp | pointer_ops.AtomicOp)
        )
        return not any(self.groups.meet(pointer, op.pointer) for op in writers)

    # -- places ------------------------------------------------------------------------------------------------------

    def _places(self, op: tile.GatherOp | tile.ScatterOp, read: SSAValue | None) -> _Places | None:
        """What an access touches, as a part of a tensor of known sides."""
        form = self.affines.of(op.offsets)
        conditions = [] if op.mask is None else self.affines.conditions(op.mask)
        if form is None or conditions is None or len(form.steps) != 2:
            return None
        limits = _limits(conditions)
        if limits is None:
            return None
        for axis, wrap in form.wraps.items():
            if read is None or limits.setdefault(axis, wrap.limit) != wrap.limit:
                return None
            if not self._is_dropped(read, axis, wrap.limit, set()):
                return None
        starts: list[Size] = [0, 0]
        sides: list[Size] = [UNBOUNDED, UNBOUNDED]
        for axis, limit in limits.items():
            sides[axis] = sum((term for term in addends(limit) if self._is_given(term)), start=0)
            starts[axis] = sides[axis] - limit
            if sides[axis] == 0:
                return None
        if any(axis not in limits or starts[axis] != start for axis, start in _floors(conditions)):
            return None
        rest = self._start_freely(form, limits, starts)
        free = [start for axis, start in enumerate(starts) if axis not in limits]
        if not all(map(is_nonnegative, [rest, *free])):
            return None  # what lies in front of a tensor's memory would be taken for nothing
        return _Places(form.start, form.steps, tuple(sides), tuple(starts))

    def _start_freely(self, form: Affine, limits: dict[int, Size], starts: list[Size]) -> Size:
        """Set where a tile begins along axes without bounds, at what of the offset its steps divide; gives the rest."""
        rest = form.start
        for start, step in zip(starts, form.steps, strict=True):
            rest = rest - start * step
        for axis, step in enumerate(form.steps):
            if axis not in limits and step not in (0, 1):
                starts[axis], rest = split_multiple(rest, step)
        for axis, step in enumerate(form.steps):
            if axis not in limits and step == 1:  # what may be far away is not a place in a row
                starts[axis] = sum((term for term in addends(rest) if not self._is_far(term)), start=0)
                rest = rest - starts[axis]
        return rest

    def _is_given(self, term: Size) -> bool:
        """Whether a term is known when a kernel is launched."""
        return all(map(self._is_argument, symbols_of(term)))

    def _is_argument(self, name: str) -> bool:
        return self.affines.symbols[name].owner is self.kernel.block

    def _is_far(self, term: Size) -> bool:
        return any(map(self._is_argument, symbols_of(term)))

    def _is_dropped(self, value: SSAValue, axis: int, limit: Size, seen: set[tuple[SSAValue, int]]) -> bool:
        """Whether nothing is written of what is made of the places of a tile from a limit on along an axis."""
        if (value, axis) in seen:
            return True
        seen.add((value, axis))
        for use in value.uses:
            op, followed = use.operation, list[tuple[SSAValue, int]]()
            match op:
                case tile.DotOp() if use.index == 2 or axis == use.index:
                    followed = [(op.out, axis)]
                case tile.MapOp() if tile.tile_type(op.out).sizes == tile.tile_type(value).sizes:
                    followed = [(op.out, axis)]
                case collective_ops.ViewOp() if (walked := _walked(op, axis)) is not None:
                    followed = [(op.out, walked)]
                case tile.ForOp():
                    number = use.index - len(op.indices)
                    followed = [(op.results[number], axis), (op.block.args[1 + number], axis)]
                case tile.YieldOp() if isinstance(loop := op.parent_op(), tile.ForOp):
                    followed = [(loop.results[use.index], axis), (loop.block.args[1 + use.index], axis)]
                case tile.ScatterOp() if use.index == 0 and op.mask is not None:
                    bounds = _limits(self.affines.conditions(op.mask) or [])
                    if bounds is None or bounds.get(axis) != limit:
                        return False
                case _:
                    return False
            if not all(self._is_dropped(*each, limit, seen) for each in followed):
                return False
        return True

    # -- ops ---------------------------------------------------------------------------------------------------------

    def _described(
        self, places: _Places, shape: Sequence[int], before: Operation
    ) -> tuple[list[SSAValue], dict[str, Attribute]]:
        """The index operands and attributes of an access that is to stand before another."""
        used = [places.offset, *places.strides, *places.sides, *places.starts]
        names = sorted(set[str]().union(*map(symbols_of, used)))
        operands: list[SSAValue] = []
        made: list[Operation] = []
        for name in names:
            value = self.affines.symbols[name]
            if isinstance(value.type, tile.TileType):
                if (value, before) not in self.indices:
                    widened = [] if value.type.dtype == i64 else [_widened(value)]
                    index = pointer_ops.IndexOp.create(
                        operands=[widened[0].out if widened else value], result_types=[IndexType()]
                    )
                    made += [*widened, index]
                    self.indices[value, before] = index.out
                value = self.indices[value, before]
            operands.append(value)
        block = before.parent_block()
        assert block is not None
        block.insert_ops_before(made, before)
        renamed: dict[str, Size] = {name: symbol(f"d{i}") for i, name in enumerate(names)}
        offset, *others = (substitute(size, renamed) for size in used)
        strides, sides, starts = others[:2], others[2:4], others[4:]
        extents = [
            side if whole == UNBOUNDED else minimum(side, maximum(0, whole - start))
            for side, whole, start in zip(shape, sides, starts, strict=True)
        ]
        lists = {"offset": [offset], "strides": strides, "extents": extents, "sides": sides, "starts": starts}
        return operands, {name: tile.Sizes(tuple(sizes)) for name, sizes in lists.items()}

    def _put(self, op: tile.LoadOp | tile.StoreOp, before: Operation, shape: Sequence[int]) -> int | None:
        """Put an access before another, if TMA can make it; gives the axis that runs through memory."""
        block = before.parent_block()
        assert block is not None
        block.insert_op_before(op, before)
        part = tma_box_of(self.kernel, op, shape)
        if part is None or (isinstance(op, tile.StoreOp) and part.inner == 0):
            op.detach()
            op.erase()
            return None
        return part.inner


def _widened(value: SSAValue) -> tile.MapOp:
    type_ = tile.tile_type(value)
    attributes = {"function": StringAttr("cast"), "source": to_attribute(type_.dtype), "target": to_attribute(i64)}
    return tile.MapOp.create(operands=[value], attributes=attributes, result_types=[tile.TileType.of((), i64)])


def _walked(op: collective_ops.ViewOp, axis: int) -> int | None:
    """The axis of a view that is one of its operand's."""
    axes = axes_of(op)
    return None if axes is None else axes.walked[axis]


def _limits(conditions: Sequence[Condition]) -> dict[int, Size] | None:
    """How many places along each axis are inside, where conditions say so; None if they say anything else."""
    limits: dict[int, Size] = {}
    for condition in conditions:
        walked = [(axis, step) for axis, step in enumerate(condition.number.steps) if step != 0]
        if len(walked) != 1 or walked[0][1] not in (1, -1):
            return None
        axis, step = walked[0]
        limit = condition.number.start + 1
        if step == -1 and limits.setdefault(axis, limit) != limit:
            return None
    return limits


def _floors(conditions: Sequence[Condition]) -> list[tuple[int, Size]]:
    """Axes along which a condition asks places not to come before the tensor, and where the tile begins there."""
    steps = [(axis, step, c) for c in conditions for axis, step in enumerate(c.number.steps)]
    return [(axis, condition.number.start) for axis, step, condition in steps if step == 1]
