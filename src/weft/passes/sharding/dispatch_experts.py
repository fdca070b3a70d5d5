"""Dispatch experts: rows go to the ranks that have their matrices, and come back, in place of matrices to all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.sharding import Mesh, Sharding, Split
from weft.ir.types import i64, tensor_of
from weft.ops.base import GraphOp, View, viewed
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.sharding_rules import rule_of
from weft.passes.sharding.annotations import ARGS, OUT, mesh_of, set_shardings, shardings_at
from weft.passes.sharding.propagate_shardings import PropagateShardings


@dataclass(frozen=True)
class DispatchExperts(ModulePass):
    """%m = graph.take %w, %g      // %w [{ep}, {}, {}]        rows by rank: [D, R, R·n, K]  →  all_to_all
    %y = graph.dot %m, %x                                →     each rank's rows with its matrices
                                                               all_to_all  →  rows in their order

    `%w` has a matrix for each expert, split over an axis; `%g` says of each row which one it is multiplied with. All
    that is done row by row up to the last use of such a matrix is done where the matrix is. Every rank has room for as
    many rows from each other as that one has: no row is dropped, whatever the routing. Rows that do not come are
    computed for nothing. Where rows are not a multiple of the ranks, matrices are gathered as before.
    """

    name: ClassVar[str] = "dispatch_experts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and (mesh := mesh_of(function)) is not None:
                chosen = _chosen(function, mesh)
                lies = _lies(function) if chosen else {}
                for (index, axis), takes in chosen.items():
                    if (layout := _layout(index, axis, lies.get(index), mesh)) is not None:
                        _dispatch(function, layout, index, takes)


@dataclass(frozen=True)
class _Layout:
    """How rows lie: over `outer` axes first, which are data parallel, and over the experts' `axis`."""

    axis: str
    outer: tuple[str, ...]
    groups: int
    ranks: int
    rows: int

    @property
    def wide(self) -> int:
        """The rows of all ranks, with places for all that may come."""
        return self.groups * self.ranks * self.ranks * self.rows


def _lies(function: FuncOp) -> dict[SSAValue, Sharding]:
    """The sharding of every value, were experts gathered."""
    copy = function.clone()
    PropagateShardings().apply(Context(), ModuleOp([copy]))
    found: dict[SSAValue, Sharding] = {}
    arguments = shardings_at(copy, ARGS, len(copy.block.args))
    found |= {v: s for v, s in zip(function.block.args, arguments, strict=True) if s is not None}
    for op, twin in zip(function.block.ops, copy.block.ops, strict=True):
        lies = shardings_at(twin, OUT, len(twin.results))
        found |= {value: sharding for value, sharding in zip(op.results, lies, strict=True) if sharding is not None}
    return found


def _layout(index: SSAValue, axis: str, lies: Sharding | None, mesh: Mesh) -> _Layout | None:
    splits = lies.dims[0] if lies is not None and lies.dims else ()
    outer: list[str] = []
    for split in splits:
        if split.axis == axis or split.blocks != 1:
            break
        outer.append(split.axis)
    rows, groups, ranks = tensor_of(index.type).shape[0], mesh.size(outer), mesh.size([axis])
    if not isinstance(rows, int) or rows % (groups * ranks):
        return None
    return _Layout(axis, tuple(outer), groups, ranks, rows // (groups * ranks))


def _chosen(function: FuncOp, mesh: Mesh) -> dict[tuple[SSAValue, str], list[GraphOp]]:
    """Takes of whole rows from tables that are split over one axis, by what they are indexed with."""
    hints = shardings_at(function, ARGS, len(function.block.args))
    found: dict[tuple[SSAValue, str], list[GraphOp]] = {}
    for op in function.block.ops:
        if not isinstance(op, GraphOp) or op.name != "graph.take" or op.params["dim"] != 0:
            continue
        table, index = op.operands
        axis = _axis_of(table, hints)
        if axis is None or mesh.size([axis]) == 1 or tensor_of(index.type).rank != 1:
            continue
        rows, experts = tensor_of(index.type).shape[0], tensor_of(table.type).shape[0]
        if isinstance(rows, int) and isinstance(experts, int) and not rows % mesh.size([axis]) and rows:
            found.setdefault((index, axis), []).append(op)
    return found


def _axis_of(table: SSAValue, hints: Sequence[Sharding | None]) -> str | None:
    """The axis over which the first dimension of an argument, or of a view of it that keeps that one, is split."""
    while isinstance(table, OpResult) and isinstance(op := table.op, View) and len(op.operands) == 1:
        rule = rule_of(op)
        if not rule.results[0] or rule.results[0][0] != rule.operands[0][0] or len(rule.results[0][0]) != 1:
            return None
        table = op.operands[0]
    hint = hints[table.index] if isinstance(table, BlockArgument) else None
    if hint is None or not hint.dims or len(hint.dims[0]) != 1 or hint.dims[0][0].blocks != 1:
        return None
    return hint.dims[0][0].axis


def _by_row(op: Operation, inside: set[SSAValue], rows: int) -> list[int] | None:
    """Which operands have a row for each row of the result, if the op computes each row of its own."""
    if not isinstance(op, GraphOp) or op.EFFECTS or not op.results:
        return None
    rule = rule_of(op)
    first = next(n for n, value in enumerate(op.operands) if value in inside)
    factors = rule.operands[first][0] if rule.operands[first] else ()
    if len(factors) != 1 or rule.sizes[factors[0]] != rows or factors[0] in rule.reduced:
        return None
    (factor,) = factors
    found: list[int] = []
    for number, dims in enumerate(rule.operands):
        if any(factor in dim for dim in dims[1:]):
            return None
        if dims and factor in dims[0]:
            found.append(number)
        elif op.operands[number] in inside:
            return None
    plain = all(dims and dims[0] == (factor,) and not any(factor in d for d in dims[1:]) for dims in rule.results)
    return found if plain else None


@dataclass(frozen=True)
class _Region:
    """What is done row by row with chosen matrices, and what it reads of each row."""

    ops: list[Operation]
    rows: dict[SSAValue, None]
    outputs: list[SSAValue]
    place: Operation
    """The first op that reads an output."""


def _region(function: FuncOp, takes: Sequence[GraphOp], rows: int) -> _Region | None:
    inside: set[SSAValue] = {take.results[0] for take in takes}
    made = {value: {value} for value in inside}
    grown: dict[Operation, list[int]] = {}
    sinks: list[Operation] = []
    for op in function.block.ops:
        if op in takes or not any(value in inside for value in op.operands):
            continue
        read = _by_row(op, inside, rows)
        if read is None:
            continue
        grown[op] = read
        if any(viewed(value) in made for value in op.operands) and not isinstance(op, View):
            sinks.append(op)
        inside |= set(op.results)
    if not any(op.name == "graph.dot" for op in sinks):
        return None
    needed = set(sinks)
    for op in reversed(list(grown)):
        if any(use.operation in needed for value in op.results for use in value.uses):
            needed.add(op)
    ops = [op for op in grown if op in needed]
    within = {value for op in (*takes, *ops) for value in op.results}
    read = {op.operands[n]: None for op in ops for n in grown[op] if op.operands[n] not in within}
    outputs: list[SSAValue] = [
        v for op in ops for v in op.results if any(use.operation not in needed for use in v.uses)
    ]
    places = {op: place for place, op in enumerate(function.block.ops)}
    users = [use.operation for value in outputs for use in value.uses if use.operation not in needed]
    if not users or any(use.operation not in needed for take in takes for use in take.results[0].uses):
        return None
    place = min(users, key=lambda op: places[op])
    late = [value for value in read if isinstance(value.owner, Operation) and places[value.owner] >= places[place]]
    return None if late else _Region(ops, read, outputs, place)


def _dispatch(function: FuncOp, layout: _Layout, index: SSAValue, takes: Sequence[GraphOp]) -> None:
    rows = layout.groups * layout.ranks * layout.rows
    region = _region(function, takes, rows)
    if region is None:
        return
    experts = {tensor_of(take.operands[0].type).shape[0] for take in takes}
    if len(experts) != 1:
        return
    (count,) = experts
    assert isinstance(count, int), "chosen so"
    b = GraphBuilder(function.block, region.place.location, before=region.place)
    routes = _Routes(b, layout, count // layout.ranks, index)
    mapped: dict[SSAValue, SSAValue] = {value: routes.send(value) for value in region.rows}
    for take in takes:
        mapped[take.results[0]] = routes.matrices(take.operands[0])
    for op in region.ops:
        made = _widened(op, [mapped.get(value, value) for value in op.operands], layout.wide)
        b.insert(made)
        routes.part(made.results[0], flat=True)
        mapped |= dict(zip(op.results, made.results, strict=True))
    inner = set(region.ops)
    for value in region.outputs:
        back = routes.give_back(mapped[value])
        for use in list(value.uses):
            if use.operation not in inner:
                use.operation.operands[use.index] = back
    for op in (*reversed(region.ops), *takes):
        op.detach()
        op.erase()


def _widened(op: Operation, operands: Sequence[SSAValue], wide: int) -> GraphOp:
    """The same op on more rows."""
    assert isinstance(op, GraphOp), "row by row"
    params: dict[str, Any] = dict(op.params)
    shape = params.get("shape")
    if isinstance(shape, tuple) and shape and shape == tensor_of(op.results[0].type).shape:
        params["shape"] = (wide, *shape[1:])
    return type(op).make(*operands, location=op.location, **params)


class _Routes:
    """Where rows go and come from: of `n` rows of each of `ranks` parts, a place for each row on each rank.

    Rows lie as [D, R, n]: data parallel groups, in which the ranks have parts. Rows of one part that go to one rank lie
    one behind the other there, in their order; what is left of the `n` places is filled with other rows, which nobody
    reads back.
    """

    def __init__(self, b: GraphBuilder, layout: _Layout, experts: int, index: SSAValue) -> None:
        self.b, self.layout, self.experts = b, layout, experts
        groups, ranks, n = layout.groups, layout.ranks, layout.rows
        part = self.part
        chosen = part(b.reshape(b.cast(index, dtype=i64), shape=(groups, ranks, n)))
        to = part(b.floordiv(chosen, self._full(experts)))
        every, slots = self._iota(ranks, (1, 1, ranks, 1)), self._iota(n, (1, 1, 1, n))
        equal = part(b.eq(part(b.reshape(to, shape=(groups, ranks, 1, n))), every))
        counts = part(b.sum(part(b.cast(equal, dtype=i64)), dims=(3,), keep=False))
        starts = part(b.sub(part(b.cumsum(counts, dim=2)), counts))
        order = part(_sorted(b, to))
        places = part(b.add(part(b.reshape(starts, shape=(groups, ranks, ranks, 1))), slots))
        places = part(b.minimum(places, self._full(n - 1)))
        comes = part(b.lt(slots, part(b.reshape(counts, shape=(groups, ranks, ranks, 1)))))
        self.rows = part(b.gather(order, part(b.reshape(places, shape=(groups, ranks, ranks * n))), dim=2))
        named = part(b.reshape(part(b.gather(chosen, self.rows, dim=2)), shape=(groups, ranks, ranks, n)))
        own = part(b.sub(named, b.mul(every, self._full(experts))))
        local = self._exchange(part(b.where(comes, own, self._full(0))), ())
        self.experts_there = part(b.reshape(local, shape=(groups, ranks, ranks * n)))
        placed = part(b.sub(part(_sorted(b, order)), part(b.gather(starts, to, dim=2))))
        self.back = part(b.add(part(b.mul(to, self._full(n))), placed))

    def part(self, value: SSAValue, *, flat: bool = False) -> SSAValue:
        """A value of which each rank has its own part: of groups and ranks, or of rows that are `flat`."""
        if isinstance(value, OpResult):
            outer, inner = tuple(map(Split, self.layout.outer)), (Split(self.layout.axis),)
            first = ((*outer, *inner),) if flat else (outer, inner)
            rest = ((),) * (tensor_of(value.type).rank - len(first))
            set_shardings(value.op, OUT, [Sharding((*first, *rest))] * len(value.op.results))
        return value

    def _full(self, value: int) -> SSAValue:
        return self.b.full(value=value, shape=(), dtype=i64)

    def _iota(self, count: int, shape: tuple[int, ...]) -> SSAValue:
        return self.b.reshape(self.b.iota(shape=(count,), dim=0, dtype=i64, start=0, step=1), shape=shape)

    def _exchange(self, value: SSAValue, rest: tuple[int, ...]) -> SSAValue:
        """[D, from, to, n, …] as [D, to, from, n, …], each rank with its own of the second: an all-to-all."""
        lay = self.layout
        made = self.part(self.b.reshape(value, shape=(lay.groups, lay.ranks, lay.ranks, lay.rows, *rest)))
        return self.part(self.b.permute(made, dims=(0, 2, 1, *range(3, 4 + len(rest)))))

    def _picked(self, value: SSAValue, index: SSAValue) -> SSAValue:
        """Of [D, R, m, K] the rows [D, R, j] that an index names."""
        width, shape = tensor_of(value.type).shape[3], tensor_of(index.type).shape
        narrow = self.part(self.b.reshape(index, shape=(*shape, 1)))
        wide = self.part(self.b.broadcast(narrow, shape=(*shape, width)))
        return self.part(self.b.gather(value, wide, dim=2))

    def send(self, value: SSAValue) -> SSAValue:
        """Rows [N, …] as those [R·N, …] that ranks get."""
        inner, lay = _sizes(tensor_of(value.type).shape[1:]), self.layout
        flat = self.part(self.b.reshape(value, shape=(lay.groups, lay.ranks, lay.rows, prod(inner))))
        there = self._exchange(self._picked(flat, self.rows), (prod(inner),))
        return self.part(self.b.reshape(there, shape=(lay.wide, *inner)), flat=True)

    def matrices(self, table: SSAValue) -> SSAValue:
        """The matrix of each row that a rank gets, which is one of its own."""
        inner, lay = _sizes(tensor_of(table.type).shape[1:]), self.layout
        flat = self.b.reshape(table, shape=(1, lay.ranks, self.experts, prod(inner)))
        every = self.part(self.b.broadcast(flat, shape=(lay.groups, lay.ranks, self.experts, prod(inner))))
        return self.part(self.b.reshape(self._picked(every, self.experts_there), shape=(lay.wide, *inner)), flat=True)

    def give_back(self, value: SSAValue) -> SSAValue:
        """Results [R·N, …] as those [N, …] of the rows in their order."""
        inner, lay = _sizes(tensor_of(value.type).shape[1:]), self.layout
        here = self._exchange(value, (prod(inner),))
        flat = self.part(self.b.reshape(here, shape=(lay.groups, lay.ranks, lay.ranks * lay.rows, prod(inner))))
        picked = self._picked(flat, self.back)
        return self.part(self.b.reshape(picked, shape=(lay.groups * lay.ranks * lay.rows, *inner)), flat=True)


def _sorted(b: GraphBuilder, value: SSAValue) -> SSAValue:
    """Where each element stands that comes next in order, along the third dimension."""
    return b.sort(value, dim=2, descending=False, stable=True)[1]


def _sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)
