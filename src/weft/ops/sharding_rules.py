"""How an op's dimensions belong together: the one rule from which shardings are propagated and programs partitioned.

A rule is an einsum over factors, `(m,k), (k,n) -> (m,n)`: a factor that is split over an axis of the mesh is split in
every operand and result that has it, each rank runs the same op on its part, and where a factor is in no result the
ranks hold summands of it. Rules are read off what the op's class says of its elements: `Elementwise` from
broadcasting, `Movement`, `Reduction` and `Scatter` from the index maps that lowering uses. A `Structured` op states it:

    @staticmethod
    def sharding(x, y, **params): return einsum("mk,kn->mn", (x, y))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.ir.expr import Expr, Size, product, symbol, symbols_of
from weft.ir.types import DType, Tensor, boolean, i64, tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, Reduction, Scan, Scatter
from weft.ops.reshaping import matching_runs

Dims = tuple[tuple[str, ...], ...]
"""Of each dimension its factors, from the outermost."""

_PARTIAL = {"sum", "max", "min", "prod", "any", "all"}


@dataclass(frozen=True)
class ShardingRule:
    """Which factors the dimensions of operands and results are made of, their sizes, and how some are reduced.

    A dimension without factors stays whole.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, Size]
    reduced: Mapping[str, str] = field(default_factory=dict[str, str])
    """The factors that no result has, and what combines the ranks' parts."""
    fixed: frozenset[str] = frozenset()
    """Factors that are never split: a dimension that has one is blocks of what can be."""

    def __str__(self) -> str:
        def text(tensors: tuple[Dims, ...]) -> str:
            return ", ".join("(" + ",".join("*".join(dim) or "1" for dim in dims) + ")" for dims in tensors)

        reduced = "".join(f" {kind} {factor}" for factor, kind in self.reduced.items())
        return f"{text(self.operands)} -> {text(self.results)}{reduced}"


def rule_of(op: GraphOp) -> ShardingRule:
    """The rule of an op as it stands in a program."""
    tensors = [tensor_of(operand.type) for operand in op.operands]
    results = [tensor_of(result.type) for result in op.results]
    return sharding_rule(type(op), tensors, results, op.params)


def sharding_rule(
    cls: type[GraphOp], tensors: Sequence[Tensor], results: Sequence[Tensor], params: Mapping[str, Any]
) -> ShardingRule:
    """The rule of an op, from what its class says of its elements. Without a word of it, everything stays whole."""
    stated: Callable[..., ShardingRule | None] | None = getattr(cls, "sharding", None)
    if stated is not None and (rule := stated(*tensors, **params)) is not None:
        return rule
    if issubclass(cls, Elementwise):
        return _elementwise(tensors, results[0])
    if cls.name == "graph.reshape":
        return _reshape(tensors[0], results[0])
    if issubclass(cls, Movement):
        return _read_off(tensors, results[0], (), "", lambda body, index, over, args: cls.pull(body, index, *args, **params))  # type: ignore[attr-defined]
    if issubclass(cls, Reduction) and not hasattr(cls, "finish"):
        ranges: tuple[Size, ...] = cls.ranges(*tensors, **params)  # type: ignore[attr-defined]
        return _read_off(
            tensors, results[0], ranges, cls.KIND, lambda body, index, over, args: cls.element(body, index, over, *args, **params)  # type: ignore[attr-defined]
        )
    if issubclass(cls, Scatter):
        return _scatter(cls, tensors, results[0], params)
    if issubclass(cls, Scan):
        return along(params["dim"], tensors, results)
    return whole(tensors, results)


def whole(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> ShardingRule:
    """No dimension can be split."""
    return ShardingRule(tuple(((),) * t.rank for t in tensors), tuple(((),) * t.rank for t in results), {})


def along(dim: int, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> ShardingRule:
    """All dimensions but one belong together in operands and results, which have the same rank."""
    sizes = {f"d{d}": size for d, size in enumerate(tensors[0].shape) if d != dim}
    dims = tuple(() if d == dim else (f"d{d}",) for d in range(tensors[0].rank))
    return ShardingRule((dims,) * len(tensors), (dims,) * len(results), sizes)


def einsum(text: str, tensors: Sequence[Tensor], results: Sequence[Tensor] = (), kind: str = "sum") -> ShardingRule:
    """The rule that `ij,jk->ik` says: a letter a dimension, `.` for one that stays whole or is broadcast.

    Factors that no result has are reduced by `kind`; dimensions of size 1 stay whole.
    """
    left, right = text.split("->")
    sides = [left.split(","), right.split(",")]
    sizes: dict[str, Size] = {}
    for letters, tensor in zip(sides[0], tensors, strict=True):
        for letter, size in zip(letters, tensor.shape, strict=True):
            if letter != "." and sizes.get(letter, 1) == 1:
                sizes[letter] = size
    shapes = [tensor.shape for tensor in tensors], [tensor.shape for tensor in results]

    def dims(letters: str, shape: Sequence[Size] | None) -> Dims:
        own = shape or [sizes.get(letter, 1) for letter in letters]
        return tuple((x,) if x != "." and size == sizes[x] else () for x, size in zip(letters, own, strict=True))

    operands = tuple(dims(letters, shape) for letters, shape in zip(sides[0], shapes[0], strict=True))
    given = shapes[1] or [None] * len(sides[1])
    found = tuple(dims(letters, shape) for letters, shape in zip(sides[1], given, strict=True))
    reduced = {letter: kind for letter in sizes if letter not in right}
    return ShardingRule(operands, found, sizes, reduced)


def blocks_of(
    whole: Sequence[Size], part: Sequence[Size], starts: Sequence[Size], steps: Sequence[Size]
) -> ShardingRule:
    """The rule of a slice: a dimension that it takes whole splits, and one of whose equal blocks it takes one splits
    within each block.

        8 from 8 of 24   →   (b*i) -> (i), where b is 3 blocks that stay together
    """
    sizes: dict[str, Size] = {}
    source: list[tuple[str, ...]] = []
    result: list[tuple[str, ...]] = []
    for d, (size, count, start, step) in enumerate(zip(whole, part, starts, steps, strict=True)):
        inner, outer = f"i{d}", f"b{d}"
        known = isinstance(size, int) and isinstance(count, int) and isinstance(start, int) and count > 0
        if (start, step, count) == (0, 1, size):
            sizes[inner] = count
            source.append((inner,))
            result.append((inner,))
        elif known and step == 1 and size % count == 0 and start % count == 0:
            sizes |= {inner: count, outer: size // count}
            source.append((outer, inner))
            result.append((inner,))
        else:
            source.append(())
            result.append(())
    fixed = frozenset(name for name in sizes if name.startswith("b"))
    return ShardingRule((tuple(source),), (tuple(result),), sizes, fixed=fixed)


def _elementwise(tensors: Sequence[Tensor], result: Tensor) -> ShardingRule:
    def dims(tensor: Tensor) -> Dims:
        lead = result.rank - tensor.rank
        return tuple(
            () if size == 1 and result.shape[lead + d] != 1 else (f"d{lead + d}",) for d, size in enumerate(tensor.shape)
        )

    sizes = {f"d{d}": size for d, size in enumerate(result.shape)}
    return ShardingRule(tuple(map(dims, tensors)), (dims(result),), sizes)


def _reshape(source: Tensor, result: Tensor) -> ShardingRule:
    sizes: dict[str, Size] = {}
    from_dims: list[tuple[str, ...]] = [()] * source.rank
    to_dims: list[tuple[str, ...]] = [()] * result.rank
    if 0 in source.shape:
        return whole([source], [result])
    for run, (here, there) in enumerate(matching_runs(result.shape, source.shape)):
        if len(here) == len(there) == 1:
            name = f"r{run}"
            sizes[name] = source.shape[there[0]]
            from_dims[there[0]] = to_dims[here[0]] = (name,)
            continue
        shapes = [result.shape[d] for d in here], [source.shape[d] for d in there]
        factors = _common_factors(*shapes)
        if factors is None:
            continue
        names = [f"r{run}_{n}" for n in range(len(factors))]
        sizes |= dict(zip(names, factors, strict=True))
        for dims, places, shape in ((to_dims, here, shapes[0]), (from_dims, there, shapes[1])):
            rest = list(zip(names, factors, strict=True))
            for place, size in zip(places, shape, strict=True):
                taken: list[str] = []
                while size != 1:
                    name, factor = rest.pop(0)
                    taken.append(name)
                    size = size // factor
                dims[place] = tuple(taken)
    return ShardingRule((tuple(from_dims),), (tuple(to_dims),), sizes)


def _common_factors(left: Sequence[Size], right: Sequence[Size]) -> list[int] | None:
    """The sizes into which both shapes fall apart, from the outermost; None where they do not nest."""
    bounds: set[int] = {1}
    for shape in (left, right):
        step = 1
        for size in reversed(shape):
            if not isinstance(size, int):
                return None
            step *= size
            bounds.add(step)
    ordered = sorted(bounds)
    if any(b % a for a, b in zip(ordered, ordered[1:], strict=False)):
        return None
    return [b // a for a, b in zip(ordered, ordered[1:], strict=False)][::-1]


# -- what the index maps of movements, reductions and scatters say ------------------------------------------------


@dataclass(frozen=True)
class _Value:
    dtype: DType


@dataclass(frozen=True)
class _Operand:
    tensor: Tensor
    number: int


@dataclass
class _Recorder:
    """A `Body` that writes down which elements of the operands a rule reads, and computes nothing."""

    ranges: Mapping[str, Size]
    reads: list[tuple[int, tuple[Size, ...]]] = field(default_factory=list[tuple[int, tuple[Size, ...]]])
    blocked: set[str] = field(default_factory=set[str])
    """Variables whose position means something, so that a part cannot be computed like the whole."""
    computed: int = 0

    def at(self, operand: Any, index: Sequence[Size], mask: Any = None, other: Any = 0) -> _Value:
        self.reads.append((operand.number, tuple(index)))
        return _Value(operand.tensor.dtype)

    def constant(self, value: Any, dtype: DType) -> _Value:
        return _Value(dtype)

    def math(self, function: str, *values: Any) -> _Value:
        compares = function in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")
        return _Value(boolean if compares else values[0].dtype if values else i64)

    def cast(self, value: Any, dtype: DType) -> _Value:
        return _Value(dtype)

    bitcast = rounded = cast

    def where(self, condition: Any, yes: Any, no: Any) -> _Value:
        return _Value(yes.dtype)

    def position(self, index: Size, dtype: DType) -> _Value:
        self.blocked |= symbols_of(index)
        return _Value(dtype)

    def index(self, value: Any, size: Size) -> Expr:
        self.computed += 1
        return symbol(f"_computed{self.computed}")

    def inside(self, index: Size, size: Size) -> _Value | None:
        if not (isinstance(index, Expr) and self.ranges.get(str(index)) == size):
            self.blocked |= symbols_of(index)
        return _Value(boolean)

    def both(self, a: Any, b: Any) -> Any:
        return a or b

    def factors(self, tensors: Sequence[Tensor]) -> list[list[str | None]]:
        """Of each dimension of each operand the variable that it is read at, if it is one over its whole size."""
        found: list[list[str | None | bool]] = [[False] * tensor.rank for tensor in tensors]
        for number, index in self.reads:
            for d, place in enumerate(index):
                name = str(place)
                plain = isinstance(place, Expr) and self.ranges.get(name) == tensors[number].shape[d]
                if found[number][d] is not False and found[number][d] != (name if plain else None):
                    self.blocked |= {found[number][d]} if isinstance(found[number][d], str) else set()
                    plain = False
                if not plain:
                    self.blocked |= symbols_of(place)
                found[number][d] = name if plain else None
        return [[name if isinstance(name, str) else None for name in dims] for dims in found]


def _read_off(
    tensors: Sequence[Tensor],
    result: Tensor,
    ranges: Sequence[Size],
    kind: str,
    element: Callable[[Any, list[Size], list[Size], list[_Operand]], Any],
) -> ShardingRule:
    sizes = {f"i{d}": size for d, size in enumerate(result.shape)} | {f"k{n}": size for n, size in enumerate(ranges)}
    body = _Recorder(sizes)
    index: list[Size] = [symbol(f"i{d}") for d in range(result.rank)]
    over: list[Size] = [symbol(f"k{n}") for n in range(len(ranges))]
    element(body, index, over, [_Operand(tensor, number) for number, tensor in enumerate(tensors)])
    found = body.factors(tensors)
    if kind not in _PARTIAL:
        body.blocked |= {str(each) for each in over}

    def dims(names: Sequence[str | None]) -> Dims:
        return tuple((name,) if name is not None and name not in body.blocked else () for name in names)

    kept = {name: size for name, size in sizes.items() if name not in body.blocked}
    reduced = {name: kind for name in kept if name.startswith("k")}
    return ShardingRule(tuple(map(dims, found)), (dims([str(i) for i in index]),), kept, reduced)


def _scatter(
    cls: Any, tensors: Sequence[Tensor], result: Tensor, params: Mapping[str, Any]
) -> ShardingRule:
    """A scatter into zeros of updates that are added is a sum over the updates; else only what it does not index splits."""
    shape: tuple[Size, ...] = cls.updates(*tensors, **params)
    sizes = {f"u{d}": size for d, size in enumerate(shape)}
    body = _Recorder(sizes)
    index: list[Size] = [symbol(name) for name in sizes]
    operands = [_Operand(tensor, number) for number, tensor in enumerate(tensors)]
    target: list[Size] = cls.target(body, index, *operands, **params)
    cls.update(body, index, *operands, **params)
    found = body.factors(tensors)
    places = [
        str(place) if isinstance(place, Expr) and sizes.get(str(place)) == size else None
        for place, size in zip(target, result.shape, strict=True)
    ]
    for place, name in zip(target, places, strict=True):
        if name is None:
            body.blocked |= {s for s in symbols_of(place) if s in sizes}
    found[0] = places
    adds = params.get("accumulate") or params.get("kind") == "add"
    summed = {name for name in sizes if name not in places}
    if not adds:
        body.blocked |= summed

    def dims(names: Sequence[str | None]) -> Dims:
        return tuple((name,) if name is not None and name not in body.blocked else () for name in names)

    kept = {name: size for name, size in sizes.items() if name not in body.blocked}
    reduced = {name: "sum" for name in kept if name in summed}
    return ShardingRule(tuple(map(dims, found)), (dims(places),), kept, reduced)


def elements(dims: Dims, sizes: Mapping[str, Size]) -> Size:
    """How many elements a tensor of these dimensions has, as far as factors tell."""
    return product([sizes[factor] for dim in dims for factor in dim])
