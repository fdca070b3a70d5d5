"""In which order a kernel's reads and writes may happen.

A read is computed where it is needed, which may be later than where it stands. Kernels made from graphs never read what
they write; in those that people write, a read that a write overtakes has to happen where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.cpu.neighbours import Neighbours
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

LAZY = (
    tile.ConstantOp,
    tile.LoadOp,
    tile.PositionOp,
    tile.GatherOp,
    tile.MapOp,
    collective_ops.ViewOp,
    collective_ops.TakeOp,
)
"""What is computed at a position, where and when something needs it."""


def lazy_closure(value: SSAValue) -> dict[SSAValue, None]:
    """The value and all it is lazily computed from, down to and including what is already there; in a fixed order."""
    return _closure(value, _read_lazily)


def _read_lazily(op: Operation) -> Sequence[SSAValue]:
    return op.operands if isinstance(op, LAZY) else ()


def same_place_closure(value: SSAValue) -> dict[SSAValue, None]:
    """The value and what it is computed from at its own position: not what it reads through views, elsewhere."""

    def read_there(op: Operation) -> Sequence[SSAValue]:
        if isinstance(op, collective_ops.TakeOp):
            return (op.indices,)
        return op.operands if isinstance(op, tile.MapOp | tile.GatherOp) else ()

    return _closure(value, read_there)


def _closure(value: SSAValue, sources: Callable[[Operation], Sequence[SSAValue]]) -> dict[SSAValue, None]:
    """A value, and the tiles that are found by going from op to op."""
    seen: dict[SSAValue, None] = {}
    pending = [value]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen[current] = None
            found = sources(current.op) if isinstance(current, OpResult) else ()
            pending.extend(v for v in found if isinstance(v.type, tile.TileType))
    return seen


@dataclass(frozen=True)
class MemoryOrder(MemoryGroups):
    """Which memory pointers point to, and which reads must not be put off."""

    early: frozenset[SSAValue] = frozenset()

    @classmethod
    def of(cls, kernel: tile.KernelOp) -> MemoryOrder:
        found = cls.of_kernel(kernel)
        order = cls(found.groups, found.written)
        return cls(found.groups, True, frozenset(order._early(kernel))) if found.written else order

    def reads(self, store: tile.ScatterOp, closure: Iterable[SSAValue]) -> bool:
        """Whether computing values reads memory that a store may write."""
        gathers = [v.op for v in closure if isinstance(v, OpResult) and isinstance(v.op, tile.GatherOp)]
        return any(self.meet(store.pointer, gather.pointer) for gather in gathers)

    def _early(self, kernel: tile.KernelOp) -> Iterable[SSAValue]:
        """The reads between which and a use of theirs something may write to the same memory."""
        places = {op: number for number, op in enumerate(kernel.walk())}
        writes = [op for op in places if isinstance(op, tile.ScatterOp | pointer_ops.AtomicOp)]
        for op in places:
            if not isinstance(op, tile.GatherOp) or not tile.tile_type(op.out).sizes:
                continue
            threats = [w for w in writes if self.meet(w.pointer, op.pointer)]
            if threats and any(self._overtaken(op, use, threats, places) for use in _uses(op.out)):
                yield op.out

    def _overtaken(
        self, read: tile.GatherOp, use: Operation, writes: Iterable[Operation], places: Mapping[Operation, int]
    ) -> bool:
        start, stop = places[read], places[use]
        loops = [loop for loop in _loops_of(use) if not loop.is_ancestor(read)]
        for write in writes:
            if any(loop.is_ancestor(write) for loop in loops) or start < places[write] < stop:
                return True
            if write is use and not (isinstance(write, tile.ScatterOp) and _in_place(read, write)):
                return True
        return False


def _in_place(read: tile.GatherOp, write: tile.ScatterOp) -> bool:
    """Whether a write goes to where a read was, position by position, each position to a place of its own."""
    if read.pointer is not write.pointer or read.offsets is not write.offsets:
        return False
    neighbours, reach = Neighbours(), 1
    sizes = tile.tile_type(read.offsets).sizes
    steps = [(neighbours.step_along(read.offsets, axis), size) for axis, size in enumerate(sizes) if size > 1]
    for step, size in sorted(steps, key=lambda each: abs(each[0] or 0)):
        if step is None or abs(step) < reach:
            return False
        reach = abs(step) * size
    return True


def _uses(value: SSAValue) -> list[Operation]:
    """The ops that make a value be computed: it may reach them through ops that are computed where needed."""
    found: dict[Operation, None] = {}
    pending, seen = [value], set[SSAValue]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            op = use.operation
            if isinstance(op, LAZY):
                if tile.tile_type(op.results[0]).sizes:
                    pending.append(op.results[0])
                else:
                    found[op] = None
            else:
                found[op] = None
    return list(found)


def _loops_of(op: Operation) -> list[Operation]:
    """The loops around an op."""
    loops: list[Operation] = []
    block: Block | None = op.parent_block()
    while block is not None:
        parent = block.parent_op()
        if isinstance(parent, tile.ForOp | control_flow.WhileOp):
            loops.append(parent)
        block = parent.parent_block() if parent is not None else None
    return loops
