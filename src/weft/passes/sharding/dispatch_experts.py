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


@dataclass(frozen=True)
class DispatchExperts(ModulePass):
    """%m = graph.take %w, %g      // %w [{ep}, {}, {}]        rows by rank: [R, R·n, K]  →  all_to_all
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
                for (index, axis), takes in _chosen(function, mesh).items():
                    _dispatch(function, mesh, axis, index, takes)


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
    inside = {take.results[0] for take in takes}
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
    outputs = [v for op in ops for v in op.results if any(use.operation not in needed for use in v.uses)]
    places = {op: place for place, op in enumerate(function.block.ops)}
    users = [use.operation for value in outputs for use in value.uses if use.operation not in needed]
    if not users or any(use.operation not in needed for take in takes for use in take.results[0].uses):
        return None
    place = min(users, key=lambda op: places[op])
    late = [value for value in read if isinstance(value.owner, Operation) and places[value.owner] >= places[place]]
    return None if late else _Region(ops, read, outputs, place)


def _dispatch(function: FuncOp, mesh: Mesh, axis: str, index: SSAValue, takes: Sequence[GraphOp]) -> None:
    rows, ranks = tensor_of(index.type).shape[0], mesh.size([axis])
    assert isinstance(rows, int), "chosen so"
    region = _region(function, takes, rows)
    if region is None:
        return
    experts = {tensor_of(take.operands[0].type).shape[0] for take in takes}
    if len(experts) != 1:
        return
    (count,) = experts
    assert isinstance(count, int), "chosen so"
    b = GraphBuilder(function.block, region.place.location, before=region.place)
    routes = _Routes(b, axis, ranks, rows // ranks, count // ranks, index)
    mapped: dict[SSAValue, SSAValue] = {value: routes.send(value) for value in region.rows}
    for take in takes:
        mapped[take.results[0]] = routes.matrices(take.operands[0])
    for op in region.ops:
        made = _widened(op, [mapped.get(value, value) for value in op.operands], rows, ranks * rows)
        b.insert(made)
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


def _widened(op: Operation, operands: Sequence[SSAValue], rows: int, wide: int) -> GraphOp:
    """The same op on more rows."""
    assert isinstance(op, GraphOp), "row by row"
    params: dict[str, Any] = dict(op.params)
    shape = params.get("shape")
    if isinstance(shape, tuple) and shape and shape == tensor_of(op.results[0].type).shape:
        params["shape"] = (wide, *shape[1:])
    return type(op).make(*operands, location=op.location, **params)


class _Routes:
    """Where rows go and come from: of each of `ranks` parts of `n` rows, a place for each row on each rank.

    Rows of one part that go to one rank lie one behind the other there, in their order; what is left of the `n` places
    is filled with other rows, which nobody reads back.
    """

    def __init__(self, b: GraphBuilder, axis: str, ranks: int, n: int, experts: int, index: SSAValue) -> None:
        self.b, self.axis, self.ranks, self.n, self.experts = b, axis, ranks, n, experts
        part = self._part
        chosen = part(b.reshape(b.cast(index, dtype=i64), shape=(ranks, n)))
        to = part(b.floordiv(chosen, self._full(experts)))
        every, slots = self._iota(ranks, (1, ranks, 1)), self._iota(n, (1, 1, n))
        equal = part(b.eq(part(b.reshape(to, shape=(ranks, 1, n))), every))
        counts = part(b.sum(part(b.cast(equal, dtype=i64)), dims=(2,), keep=False))
        starts = part(b.sub(part(b.cumsum(counts, dim=1)), counts))
        order = part(_sorted(b, to))
        places = part(b.add(part(b.reshape(starts, shape=(ranks, ranks, 1))), slots))
        places = part(b.minimum(places, self._full(n - 1)))
        comes = part(b.lt(slots, part(b.reshape(counts, shape=(ranks, ranks, 1)))))
        self.rows = part(b.gather(order, part(b.reshape(places, shape=(ranks, ranks * n))), dim=1))
        named = part(b.reshape(part(b.gather(chosen, self.rows, dim=1)), shape=(ranks, ranks, n)))
        own = part(b.sub(named, b.mul(every, self._full(experts))))
        local = self._exchange(part(b.where(comes, own, self._full(0))), ())
        self.experts_there = part(b.reshape(local, shape=(ranks, ranks * n)))
        placed = part(b.sub(part(_sorted(b, order)), part(b.gather(starts, to, dim=1))))
        self.back = part(b.add(part(b.mul(to, self._full(n))), placed))

    def _part(self, value: SSAValue) -> SSAValue:
        """A value of which each rank has its own part of the first dimension."""
        if isinstance(value, OpResult):
            first = Sharding(((Split(self.axis),), *((),) * (tensor_of(value.type).rank - 1)))
            set_shardings(value.op, OUT, [first] * len(value.op.results))
        return value

    def _full(self, value: int) -> SSAValue:
        return self.b.full(value=value, shape=(), dtype=i64)

    def _iota(self, count: int, shape: tuple[int, ...]) -> SSAValue:
        return self.b.reshape(self.b.iota(shape=(count,), dim=0, dtype=i64, start=0, step=1), shape=shape)

    def _exchange(self, value: SSAValue, rest: tuple[int, ...]) -> SSAValue:
        """[from, to, n, …] as [to, from, n, …], split by its first dimension before and after: an all-to-all."""
        made = self._part(self.b.reshape(value, shape=(self.ranks, self.ranks, self.n, *rest)))
        return self._part(self.b.permute(made, dims=(1, 0, *range(2, 3 + len(rest)))))

    def _picked(self, value: SSAValue, index: SSAValue) -> SSAValue:
        """Of [R, m, K] the rows [R, j] that an index names."""
        width = tensor_of(value.type).shape[2]
        ranks, count = tensor_of(index.type).shape
        narrow = self._part(self.b.reshape(index, shape=(ranks, count, 1)))
        wide = self._part(self.b.broadcast(narrow, shape=(ranks, count, width)))
        return self._part(self.b.gather(value, wide, dim=1))

    def send(self, value: SSAValue) -> SSAValue:
        """Rows [N, …] as those [R·N, …] that ranks get."""
        inner = _sizes(tensor_of(value.type).shape[1:])
        flat = self._part(self.b.reshape(value, shape=(self.ranks, self.n, prod(inner))))
        there = self._exchange(self._picked(flat, self.rows), (prod(inner),))
        return self._part(self.b.reshape(there, shape=(self.ranks * self.ranks * self.n, *inner)))

    def matrices(self, table: SSAValue) -> SSAValue:
        """The matrix of each row that a rank gets, which is one of its own."""
        inner = _sizes(tensor_of(table.type).shape[1:])
        flat = self.b.reshape(table, shape=(self.ranks, self.experts, prod(inner)))
        return self.b.reshape(self._picked(flat, self.experts_there), shape=(self.ranks * self.ranks * self.n, *inner))

    def give_back(self, value: SSAValue) -> SSAValue:
        """Results [R·N, …] as those [N, …] of the rows in their order."""
        inner = _sizes(tensor_of(value.type).shape[1:])
        here = self._exchange(value, (prod(inner),))
        flat = self._part(self.b.reshape(here, shape=(self.ranks, self.ranks * self.n, prod(inner))))
        return self._part(self.b.reshape(self._picked(flat, self.back), shape=(self.ranks * self.n, *inner)))


def _sorted(b: GraphBuilder, value: SSAValue) -> SSAValue:
    """Where each element stands that comes next in order, along the second dimension."""
    return b.sort(value, dim=1, descending=False, stable=True)[1]


def _sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)
