"""Along which axes the tiles that a loop carries on keep what an iteration lacks.

A tile of an iteration may be smaller than the one before, and then its last elements stay as they were. Where every
iteration gives as many and nobody reads beyond them, what lies there may be anything: an accumulator whose last rows
do not exist needs no registers for its values of the iteration before.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Operation, SSAValue, Use

from weft.backends.nvidia.ir.dialect import ConvertOp
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.mma import MmaOp, PackOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.ir.expr import Expr, Size, is_nonnegative, substitute, symbol
from weft.tile import dialect as tile
from weft.tile.extents import Limit, Limits

Axis = tuple[SSAValue, int]


def kept_axes(loop: tile.ForOp, number: int, limits: Limits) -> set[int]:
    """Along which axes of a tile that a loop carries an iteration may lack what somebody reads."""
    axes = range(len(tile.tile_type(loop.results[number]).sizes))
    return {axis for axis in axes if not _Reach(loop, limits).ends_before(number, axis)}


class _Reach:
    """How far those that read a loop's tile reach along an axis."""

    def __init__(self, loop: tile.ForOp, limits: Limits) -> None:
        self.loop, self.limits = loop, limits
        self._seen: set[Axis] = set()
        self._names: dict[SSAValue, str] = {}
        self._least: set[Size] = set()
        self._made_of: set[SSAValue] = set()
        """The values that the limits are made of."""

    def ends_before(self, number: int, axis: int) -> bool:
        """Whether nothing of a tile is read that an iteration may lack."""
        yielded = _terminator(self.loop).operands[number]
        side = tile.tile_type(yielded).sizes[axis]
        shorter = [limit for limit in self.limits.of(yielded, axis) if not self._holds(limit, side)]
        self._made_of = {operand for limit in shorter for operand in _needed(limit)}
        if self._differ_in(self.loop):
            return False
        self._least = {self._named(limit) for limit in shorter}
        return not shorter or self._confined_in(self.loop, number, axis)

    def _differ_in(self, loop: tile.ForOp) -> bool:
        """Whether the limits may be others in another iteration of a loop."""
        return any(_made_in(loop, value) for value in self._made_of)

    def _holds(self, limit: Limit, side: int) -> bool:
        """Whether every iteration has a whole side: the loop's number is at least the lower bound."""
        size, operands = limit
        lower, _, step = self.loop.bounds.data
        turns = {f"d{i}": lower + symbol("turn") * step for i, v in enumerate(operands) if v is self.loop.block.args[0]}
        return is_nonnegative(substitute(size, turns) - side) if isinstance(lower, int) else size == side

    def _named(self, limit: Limit) -> Size:
        """A limit over names of the values that it is made of, whichever access has it."""
        size, operands = limit
        names = {f"d{i}": self._names.setdefault(v, f"value{len(self._names)}") for i, v in enumerate(operands)}
        return substitute(size, {name: symbol(other) for name, other in names.items()})

    def _confined(self, *places: Axis) -> bool:
        """Whether nothing reads beyond the limits, neither here nor in what is made of these tiles."""
        for place in places:
            if place in self._seen or self._within(self.limits.of(*place)):
                continue
            self._seen.add(place)
            if not all(self._reads_within(use, place[1]) for use in place[0].uses):
                return False
        return True

    def _confined_in(self, loop: tile.ForOp, number: int, axis: int) -> bool:
        return self._confined((loop.block.args[1 + number], axis), (loop.results[number], axis))

    def _within(self, extents: Iterable[Limit]) -> bool:
        named = [self._named(extent) for extent in extents]
        return all(any(is_nonnegative(least - extent) for extent in named) for least in self._least)

    def _reads_within(self, use: Use, axis: int) -> bool:
        match use.operation:
            case tile.StoreOp() as op if use.index == 0:
                return self._within([(op.extents.data[axis], tuple(op.indices)), *self.limits.of(op.value, axis)])
            case tile.YieldOp() as op if isinstance(loop := op.parent_op(), tile.ForOp):
                return not self._differ_in(loop) and self._confined_in(loop, use.index, axis)
            case tile.ForOp() as loop if use.index >= len(loop.indices):
                return self._confined_in(loop, use.index - len(loop.indices), axis)
            case tile.MapOp() | ConvertOp() | PackOp() as op:
                return self._confined((op.out, axis))
            case tile.ReduceOp() | OnlineSoftmaxOp() | MomentsOp() as op:
                return op.axis.value.data != axis and self._confined(*((result, axis) for result in op.results))
            case WgmmaWaitOp() as op:
                return self._confined((op.outs[use.index], axis))
            case tile.DotOp() | MmaOp() | WgmmaOp() as op if len(tile.tile_type(op.out).sizes) == 2:
                return (use.index == 2 or use.index == axis == 0) and self._confined((op.out, axis))  # not a's K
            case _:
                return False


def _terminator(loop: tile.ForOp) -> Operation:
    last = loop.block.last_op
    assert last is not None
    return last


def _needed(limit: Limit) -> list[SSAValue]:
    size, operands = limit
    return [operands[int(name[1:])] for name in size.symbols if name[0] == "d"] if isinstance(size, Expr) else []


def _made_in(loop: tile.ForOp, value: SSAValue) -> bool:
    made = value.owner
    inside = made if isinstance(made, Operation) else made.parent_op()
    return inside is not None and loop.is_ancestor(inside)
