"""Rows in groups, each of which is multiplied with a matrix of its own, become tiles of rows of one group.

Where several rows of a group come together, its matrix is read once for all of them; and where there are many, tiles
are as large as those of any other matmul. Which tiles there are is known only when the program runs: a table says of
each which matrix it is multiplied with, and which rows it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import i32, i64, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot
from weft.ops.matmul.quantized import Dequantize
from weft.passes.dot.read_gathered_weights import chosen_by
from weft.passes.grouping.build_groups import INLINED
from weft.passes.simplify.constant_values import made_by

IN_ORDER = "weft.in_order"
"""The attribute of a sum that numbers rows by the groups which have ended: no group ends before the one ahead of it."""
_SHARED, _SHARED_CODES = 0.9, 0.75
"""The part of rows that have a matrix of their own from which on reading it, or its codes, for each row costs less."""
_NARROW, _MEDIUM, _TALL = 8, 64, 128
"""Rows of a tile: as many as are multiplied while codes are read, and as one warp group has, or two."""
_MOST_READING, _MANY = 16, 48
"""Rows of a matrix up to which reading it takes longest, if it is codes; and from which on matmuls do."""


def expected_groups(rows: int, groups: int) -> float:
    """How many groups have a row, if each row is equally likely to be in any."""
    return groups * (1 - (1 - 1 / groups) ** rows)


@dataclass(frozen=True)
class TileGroupedGemm(ModulePass):
    """%g = graph.sum (%ends <= 0 … 63) {weft.in_order}        %m, %f, %e, %c = … %ends
    %y = graph.dot %x, (graph.take %w, %g)               →     %y = graph.tiled_dot %x, %w, %m, %f, %e, %c
    """

    name: ClassVar[str] = "tile_grouped_gemm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for dot in list(function.block.ops):
                    if isinstance(dot, Dot):
                        _tile(function, dot)


def _tile(function: FuncOp, dot: Dot) -> None:
    take = chosen_by(dot)
    ends = None if take is None else _ends(take.operands[1])
    if take is None or ends is None:
        return
    weights = take.operands[0]
    rows, groups = tensor_of(dot.results[0].type).shape[0], tensor_of(ends.type).shape[0]
    if not isinstance(rows, int) or groups != tensor_of(weights.type).shape[0] or not isinstance(groups, int):
        return
    coded = isinstance(weights, OpResult) and isinstance(weights.op, Dequantize)
    height = rows_of_tile(rows, groups, coded=coded)
    if not height and made_by(weights, "graph.permute") is None:
        return
    height = height or _MEDIUM  # what does not run along K is not read row by row
    b = GraphBuilder(function.block, before=dot, location=dot.location)
    x = b.reshape(dot.operands[0], shape=(rows, tensor_of(dot.operands[0].type).shape[2]))
    made = b.tiled_dot(x, weights, *tiles(b, ends, rows, height), rows=height)
    shape = tensor_of(made.type).shape
    readers = {use.operation for use in dot.results[0].uses}
    views = {op for op in readers if op.name == "graph.reshape" and tensor_of(op.results[0].type).shape == shape}
    for view in views:
        view.results[0].replace_all_uses_with(made)
    if readers != views:
        dot.results[0].replace_all_uses_with(b.reshape(made, shape=tensor_of(dot.results[0].type).shape))


def rows_of_tile(rows: int, groups: int, *, coded: bool) -> int:
    """How many rows a tile has; 0 where each row is better multiplied by itself."""
    hit = expected_groups(rows, groups)
    if hit > (_SHARED_CODES if coded else _SHARED) * rows:
        return 0
    if coded and rows <= _MOST_READING * hit:
        return _NARROW
    return _TALL if rows > _MANY * hit else _MEDIUM


def _ends(numbers: SSAValue) -> SSAValue | None:
    """Where groups end, if the numbers of groups are how many have ended before each row, and they end in order."""
    total = made_by(numbers, "graph.sum")
    if total is None or IN_ORDER not in total.attributes:
        return None
    flags = made_by(total.operands[0], "graph.cast")
    ended = None if flags is None else made_by(flags.operands[0], "graph.le")
    if ended is None or total.params["dims"] != (1,):
        return None
    places = made_by(ended.operands[1], "graph.iota")
    if places is None or places.params["dim"] != 0 or tensor_of(ended.operands[1].type).shape[1:] != (1,):
        return None
    if (places.params.get("start", 0), places.params.get("step", 1)) != (0, 1):
        return None
    row = ended.operands[0]
    if len(shape := tensor_of(row.type).shape) != 2 or shape[0] != 1:
        return None
    view = made_by(row, "graph.cast") or made_by(row, "graph.reshape")
    while view is not None and tensor_of(row.type).rank == 2:
        row = view.operands[0]
        view = made_by(row, "graph.cast") or made_by(row, "graph.reshape")
    return row if tensor_of(row.type).shape == shape[1:] else None


def tiles(b: GraphBuilder, ends: SSAValue, rows: int, height: int) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue]:
    """Of each tile of so many rows its matrix, its first row and the end of its group; and how many there are.

    Whatever the ends are, tiles lie within the rows, and there are no more than the tables have room for.
    """
    (groups,) = b.tensor(ends).shape
    assert isinstance(groups, int)
    most = rows // height + min(groups, rows)
    one, zero, side, size, room = (b.full(value=value, shape=(), dtype=i32) for value in (1, 0, height, rows, most))
    ends = b.cast(ends, dtype=i32)

    def small(value: SSAValue) -> SSAValue:
        """What every kernel computes by itself that reads it."""
        assert isinstance(value, OpResult)
        value.op.attributes[INLINED] = UnitAttr()
        return value

    def starts(shape: tuple[int, int]) -> SSAValue:
        """Where the group that a column stands for begins: where the one before it ends."""
        place = b.iota(shape=shape, dim=1, dtype=i64, start=-1, step=1)
        return b.where(b.lt(place, b.full(value=0, shape=(), dtype=i64)), zero, small(b.take(ends, place, dim=0)))

    def within(row: SSAValue) -> SSAValue:
        return b.minimum(b.maximum(row, zero), size)

    def counts(shape: tuple[int, int]) -> tuple[SSAValue, SSAValue, SSAValue]:
        last = within(b.broadcast(b.reshape(ends, shape=(1, groups)), shape=shape))
        first = within(starts(shape))
        length = b.maximum(b.sub(last, first), zero)
        return b.floordiv(b.add(length, b.sub(side, one)), side), first, last

    square, table = (groups, groups), (most, groups)
    number = b.iota(shape=square, dim=1, dtype=i32)
    until = b.le(number, b.iota(shape=square, dim=0, dtype=i32))
    through = b.sum(b.where(until, counts(square)[0], zero), dims=(1,), keep=False)
    count, first, last = counts(table)
    behind = b.broadcast(b.reshape(through, shape=(1, groups)), shape=table)
    before = b.sub(behind, count)
    slot = b.iota(shape=table, dim=0, dtype=i32)
    own = b.logical_and(b.le(before, slot), b.lt(slot, behind))

    def chosen(value: SSAValue) -> SSAValue:
        return b.sum(b.where(own, value, zero), dims=(1,), keep=False)

    start = b.add(first, b.mul(b.sub(slot, before), side))
    total = b.minimum(b.maximum(b.sum(count, dims=(1,), keep=False), one), room)
    return chosen(b.iota(shape=table, dim=1, dtype=i32)), chosen(start), chosen(last), total
