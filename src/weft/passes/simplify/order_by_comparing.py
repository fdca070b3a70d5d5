"""Sort short lines, and sum up along them, by comparing all pairs of their elements: a library's call costs more.

What routes tokens to experts is of that kind: the greatest few of a row, the order of some hundred numbers, running
sums of counts. As comparisons and sums these are kernels like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import DType, i32, i64, tensor_of
from weft.ops.base import GraphOp
from weft.ops.elementwise.select import holds
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.indexing.scatter import IndexPut
from weft.ops.indexing.sort import Sort, TopK
from weft.ops.scan import CumSum
from weft.passes.simplify.constant_values import made_by

_MOST_OF_A_SORT, _MOST_OF_LINES = 1 << 24, 1 << 26
"""Pairs that are compared in less time than a library takes to sort so many elements, of one line and of many."""
_MOST_SUMMED = 1 << 20
_LEAST_COUNTED, _LEAST_PART, _MOST_PART, _MOST_PARTS, _MOST_KINDS = 1024, 32, 256, 1024, 256
"""Elements of a line that is sorted by counting, and of a part of it; how many parts it may have, and how many kinds
of numbers."""


def worth_comparing(name: str, shape: Sequence[Size], dim: int) -> bool:
    """Whether all pairs of elements along a dimension are compared before a library has set out."""
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or not sizes or 0 in sizes:
        return False
    pairs = sizes[dim]
    for size in sizes:
        pairs *= size
    most = {"cumsum": _MOST_SUMMED, "sort": _MOST_OF_A_SORT, "topk": _MOST_OF_LINES}[name]
    return pairs <= most


def part_of(count: int) -> int:
    """Into parts of how many elements a line is cut, so that all are of one length; 0 if it cannot be."""
    sizes = (size for size in range(min(count, _MOST_PART), _LEAST_PART - 1, -1) if count % size == 0)
    size = next(sizes, 0)
    return size if size and count // size <= _MOST_PARTS else 0


def worth_counting(count: Size, kinds: Size, dtypes: Iterable[DType]) -> bool:
    """Whether a line of numbers below `kinds` is sorted by counting these; they are still such after casts to integer
    types that hold them all."""
    if not isinstance(count, int) or not isinstance(kinds, int) or not 0 < kinds <= _MOST_KINDS:
        return False
    same = all(dtype.is_integer and holds(dtype, kinds - 1) for dtype in dtypes)
    return same and count >= _LEAST_COUNTED and part_of(count) > 0


@dataclass(frozen=True)
class OrderByComparing(ModulePass):
    """%v, %p = graph.topk %x k=2 (7 x 32)     %r = graph.sum (%x before %x) (7 x 32 x 32)
    →      %p = graph.sum (graph.where (%r == 0 … 1), 0 … 31, 0) (7 x 2 x 32)
           %v = graph.gather %x, %p
    """

    name: ClassVar[str] = "order_by_comparing"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                _Rewriting(function).run()


@dataclass
class _Rewriting:
    function: FuncOp
    ranks: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Of the places that a sort of one line gives, where each of its elements has gone: the inverse."""
    kinds: dict[SSAValue, Size] = field(default_factory=dict[SSAValue, Size])
    """Below what numbers of places are."""

    def run(self) -> None:
        for op in list(self.function.block.ops):
            if isinstance(op, Sort | TopK | CumSum | IndexPut):
                b = GraphBuilder(self.function.block, before=op, location=op.location)
                for result, made in zip(op.results, self._made(b, op), strict=False):
                    result.replace_all_uses_with(made)
                if not any(result.uses for result in op.results):
                    op.detach()
                    op.erase()

    def _made(self, b: GraphBuilder, op: GraphOp) -> list[SSAValue]:
        """What stands for the results of an op; nothing where it stays."""
        if isinstance(op, IndexPut):
            return self._inverse(b, op)
        x = op.operands[0]
        dim: int = op.params["dim"]
        name = op.name.removeprefix("graph.")
        if isinstance(op, TopK):
            self.kinds[op.results[1]] = b.tensor(x).shape[dim]
        if isinstance(op, Sort) and (counted := self._counted(b, op)):
            return counted
        if not worth_comparing(name, b.tensor(x).shape, dim):
            return []
        if isinstance(op, CumSum):
            return [_running_sums(b, x, dim)] if not b.tensor(x).dtype.is_float else []
        descending = op.params["largest"] if isinstance(op, TopK) else op.params["descending"]
        if x in self.ranks and not descending and isinstance(op, Sort):
            return [b.iota(shape=b.tensor(x).shape, dim=0, dtype=i64), self.ranks[x]]
        ranks = _ranks(b, x, dim, descending)
        places = _places(b, ranks, dim, tensor_of(op.results[1].type).shape[dim])
        if isinstance(op, Sort) and b.tensor(x).rank == 1:
            self.ranks[places] = b.cast(ranks, dtype=i64)
        if isinstance(op, TopK):
            self.kinds[places] = b.tensor(x).shape[dim]
        return [b.gather(x, places, dim=dim) if op.results[0].uses else places, places]

    def _counted(self, b: GraphBuilder, op: Sort) -> list[SSAValue]:
        """A line of numbers that are places of something short, sorted by counting."""
        x, source = op.operands[0], op.operands[0]
        dtypes: set[DType] = set()
        while source not in self.kinds:
            view = made_by(source, "graph.reshape") or made_by(source, "graph.cast")
            if view is None:
                return []
            dtypes.add(b.tensor(source).dtype)
            source = view.operands[0]
        count, kinds = b.tensor(x).shape[0], self.kinds[source]
        if b.tensor(x).rank != 1 or op.params["descending"] or not worth_counting(count, kinds, dtypes):
            return []
        assert isinstance(count, int) and isinstance(kinds, int)
        ranks = _ranks_by_counting(b, x, count, kinds)
        target, numbers = b.full(value=0, shape=(count,), dtype=i64), b.iota(shape=(count,), dim=0, dtype=i64)
        places = b.index_put(target, ranks, numbers, dims=(0,), position=0, accumulate=False)
        self.ranks[places] = ranks
        return [b.gather(x, places, dim=0) if op.results[0].uses else places, places]

    def _inverse(self, b: GraphBuilder, op: IndexPut) -> list[SSAValue]:
        """0, 1, … written to the places that a sort has given."""
        target, places, *rest = op.operands
        ranks = self.ranks.get(places)
        if ranks is None or len(rest) != 1 or b.tensor(target).shape != b.tensor(places).shape:
            return []
        made = rest[0].op if isinstance(rest[0], OpResult) else None
        counts = made is not None and made.name == "graph.iota"
        plain = counts and (made.params.get("start", 0), made.params.get("step", 1)) == (0, 1)  # type: ignore[union-attr]
        if not plain or op.params["accumulate"]:
            return []
        dtype = b.tensor(target).dtype
        return [ranks if dtype == i64 else b.cast(ranks, dtype=dtype)]


def _pairs(b: GraphBuilder, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    """The elements of each line of n for all pairs [n, n], once as they go down and once across."""
    shape = b.tensor(x).shape
    down, across = (*shape[: dim + 1], 1, *shape[dim + 1 :]), (*shape[:dim], 1, *shape[dim:])
    # What is computed of a pair is so computed with all pairs, not with the line.
    all_pairs = (*shape[: dim + 1], *shape[dim:])
    return tuple(b.broadcast(b.reshape(x, shape=each), shape=all_pairs) for each in (down, across))  # type: ignore[return-value]


def _along(b: GraphBuilder, size: Size, dim: int, rank: int) -> SSAValue:
    """0, 1, … along one of so many dimensions."""
    return b.iota(shape=tuple(size if d == dim else 1 for d in range(rank)), dim=dim, dtype=i32)


def _is_greater(b: GraphBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    """A NaN is greater than all numbers."""
    greater = b.gt(x, y)
    return b.logical_or(greater, b.logical_and(b.ne(x, x), b.eq(y, y))) if b.tensor(x).dtype.is_float else greater


def _ranks(b: GraphBuilder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """How many elements of its line come before each one; equal ones stay in order."""
    tensor = b.tensor(x)
    x = b.cast(x, dtype=i32) if tensor.dtype.kind == "bool" else x
    own, other = _pairs(b, x, dim)
    first, second = (other, own) if descending else (own, other)
    size, rank = tensor.shape[dim], tensor.rank + 1
    earlier = b.lt(_along(b, size, dim + 1, rank), _along(b, size, dim, rank))
    before = b.where(earlier, b.logical_not(_is_greater(b, second, first)), _is_greater(b, first, second))
    return b.sum(b.cast(before, dtype=i32), dims=(dim + 1,), keep=False)


def _places(b: GraphBuilder, ranks: SSAValue, dim: int, count: Size) -> SSAValue:
    """Which element of its line has rank 0, 1, …"""
    tensor = b.tensor(ranks)
    rank = tensor.rank + 1
    across = b.reshape(ranks, shape=(*tensor.shape[:dim], 1, *tensor.shape[dim:]))
    own = b.eq(across, _along(b, count, dim, rank))
    zero = b.full(value=0, shape=(), dtype=i32)
    found = b.where(own, _along(b, tensor.shape[dim], dim + 1, rank), zero)
    return b.cast(b.sum(found, dims=(dim + 1,), keep=False), dtype=i64)


def _ranks_by_counting(b: GraphBuilder, x: SSAValue, count: int, kinds: int) -> SSAValue:
    """Where each number of a line belongs: behind all smaller ones, and behind equal ones of parts before its own and
    before it in its own."""
    size = part_of(count)
    parts = count // size
    zero = b.full(value=0, shape=(), dtype=i32)
    x = b.reshape(b.cast(x, dtype=i32), shape=(parts, size))
    own, other = _pairs(b, x, 1)
    earlier = b.lt(_along(b, size, 2, 3), _along(b, size, 1, 3))
    within = b.sum(b.cast(b.logical_and(earlier, b.eq(own, other)), dtype=i32), dims=(2,), keep=False)
    kind = _along(b, kinds, 1, 3)
    counts = b.sum(b.cast(b.eq(b.reshape(x, shape=(parts, 1, size)), kind), dtype=i32), dims=(2,), keep=False)
    by_kind = b.permute(counts, dims=(1, 0))
    totals = b.reshape(b.sum(by_kind, dims=(1,), keep=False), shape=(1, kinds))
    smaller = b.lt(_along(b, kinds, 1, 2), _along(b, kinds, 0, 2))
    starts = b.sum(b.where(smaller, totals, zero), dims=(1,), keep=False)
    before = b.lt(_along(b, parts, 2, 3), _along(b, parts, 0, 3))
    earlier_parts = b.where(before, b.reshape(by_kind, shape=(1, kinds, parts)), zero)
    bases = b.add(b.sum(earlier_parts, dims=(2,), keep=False), starts)
    place = b.add(b.mul(_along(b, parts, 0, 2), b.full(value=kinds, shape=(), dtype=i32)), x)
    base = b.take(b.reshape(bases, shape=(parts * kinds,)), place, dim=0)
    return b.cast(b.reshape(b.add(base, within), shape=(count,)), dtype=i64)


def _running_sums(b: GraphBuilder, x: SSAValue, dim: int) -> SSAValue:
    tensor = b.tensor(x)
    _, across = _pairs(b, x, dim)
    size, rank = tensor.shape[dim], tensor.rank + 1
    until = b.le(_along(b, size, dim + 1, rank), _along(b, size, dim, rank))
    return b.sum(b.where(until, across, b.full(value=0, shape=(), dtype=tensor.dtype)), dims=(dim + 1,), keep=False)
