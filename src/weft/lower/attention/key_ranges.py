"""What can be known of a mask of attention before it is computed: which keys the rows of a tile see at all.

    (row - key < 1024) & (key <= row)      →      rows 256 … 383 see keys from 0 to 383, and all see 0 … 256
    key <= position[batch]                 →      keys up to a number in memory

A mask is evaluated by the ops' own rules, with index expressions for values. What is a comparison of places and numbers
becomes bounds, which decide what blocks of keys are visited, and in which of them nothing has to be masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from xdsl.ir import SSAValue

from weft.ir.expr import Size, coefficient_of, maximum, minimum, simplify, symbol, symbols_of
from weft.ir.types import DType, boolean, tensor_of
from weft.lower.index_space.evaluate import Evaluator
from weft.ops.body import Value
from weft.tile import dialect as tile
from weft.tile.functions import FUNCTIONS


@dataclass(frozen=True)
class _Unknown:
    """A value of which only the type is known."""

    dtype: DType


@dataclass(frozen=True)
class Integer:
    """An integer as an index expression."""

    expr: Size
    dtype: DType


@dataclass(frozen=True)
class AtMost:
    """That an index expression is at most 0."""

    expr: Size
    dtype: DType = boolean


@dataclass(frozen=True)
class Joined:
    """Conditions of which all hold, or any."""

    kind: str
    conditions: tuple[Condition, ...]
    dtype: DType = boolean


Condition: TypeAlias = AtMost | Joined


@dataclass
class MaskReader(Evaluator):
    """Evaluates masks to conditions; integers in memory become symbols, which `numbers` tells the places of."""

    space: Mapping[str, Size] = field(default_factory=dict[str, Size])
    numbers: dict[str, tuple[SSAValue, Size]] = field(default_factory=dict[str, tuple[SSAValue, Size]])

    def bounds(self) -> dict[str, Size]:
        return {**self.space, **{name: size for name, (_, size) in self.dynamic.items()}}

    def load(
        self, value: SSAValue, address: Size, mask: Value | None, other: float | int | bool, inside: bool
    ) -> Value:
        dtype = tensor_of(value.type).dtype
        if dtype.is_float or dtype == boolean or mask is not None:
            return _Unknown(dtype)
        place = simplify(address, self.bounds())
        name = next((n for n, known in self.numbers.items() if known == (value, place)), f"number{len(self.numbers)}")
        self.numbers[name] = (value, place)
        return Integer(symbol(name) + tile.NumberOp.LEAST, dtype)

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        if dtype == boolean:
            return AtMost(0 if value else 1)
        return _Unknown(dtype) if dtype.is_float else Integer(int(value), dtype)

    def position(self, index: Size, dtype: DType) -> Value:
        return _Unknown(dtype) if dtype.is_float else Integer(index, dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        if isinstance(value, Integer) and not dtype.is_float and dtype != boolean and dtype.bits >= 32:
            return replace(value, dtype=dtype)
        return value if dtype == value.dtype else _Unknown(dtype)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        return _Unknown(dtype)

    def rounded(self, value: Value, dtype: DType) -> Value:
        return value

    def math(self, function: str, *values: Value) -> Value:
        dtype = boolean if FUNCTIONS[function].result == "bool" else values[-1].dtype
        match function, values:
            case (("add" | "sub" | "mul" | "neg"), _) if all(isinstance(value, Integer) for value in values):
                return self._sum(function, values)
            case (("lt" | "le" | "gt" | "ge" | "eq"), (Integer() as a, Integer() as b)):
                return _compared(function, a.expr - b.expr)
            case (("and" | "or"), (AtMost() | Joined() as a, AtMost() | Joined() as b)):
                return Joined(function, (a, b))
            case "not", (AtMost() | Joined() as a,):
                return _negated(a)
            case _:
                return _Unknown(dtype)

    def _sum(self, function: str, values: Sequence[Value]) -> Value:
        exprs = [value.expr for value in values if isinstance(value, Integer)]
        dtype = values[0].dtype
        if function == "neg":
            return Integer(-exprs[0], dtype)
        a, b = exprs
        if function == "mul":
            return Integer(a * b, dtype) if isinstance(a, int) or isinstance(b, int) else _Unknown(dtype)
        return Integer(a + b if function == "add" else a - b, dtype)


def _compared(function: str, difference: Size) -> Condition:
    below, above = AtMost(difference), AtMost(-difference)
    match function:
        case "lt":
            return AtMost(difference + 1)
        case "gt":
            return AtMost(1 - difference)
        case "le":
            return below
        case "ge":
            return above
        case _:
            return Joined("and", (below, above))


def _negated(condition: Condition) -> Condition:
    if isinstance(condition, AtMost):
        return AtMost(1 - condition.expr)
    return Joined("or" if condition.kind == "and" else "and", tuple(map(_negated, condition.conditions)))


@dataclass(frozen=True)
class Rows:
    """A tile of rows: the names of the runs of rows and keys, the first row, how many rows, and how many keys."""

    row: str
    key: str
    first: Size
    count: int
    keys: Size


@dataclass(frozen=True)
class KeyRange:
    """Keys from `lower` to below `upper` are seen by some rows, those of `every` by all; also those below `prefix`."""

    lower: Size
    upper: Size
    every: tuple[Size, Size]
    prefix: Size = 0


def whole_range(rows: Rows, causal: bool) -> KeyRange:
    """What is seen where no mask hides anything."""
    if not causal:
        return KeyRange(0, rows.keys, (0, rows.keys))
    seen = minimum(rows.keys, rows.first + rows.count)
    return KeyRange(0, seen, (0, minimum(rows.keys, rows.first + 1)))


def narrowed_range(known: KeyRange, condition: Condition, rows: Rows) -> KeyRange | None:
    """A range in which a condition holds as well; None where it cannot be told."""
    match condition:
        case Joined(kind="and"):
            for each in condition.conditions:
                narrowed = narrowed_range(known, each, rows)
                if narrowed is None:
                    return None
                known = narrowed
            return known
        case Joined():
            return _widened(known, condition, rows)
        case AtMost():
            return _bounded(known, condition.expr, rows)


def _bounded(known: KeyRange, expr: Size, rows: Rows) -> KeyRange | None:
    bound = bound_of(expr, rows)
    if bound is None or bound.step == 0:
        return None
    ends = [bound.limit + bound.slope * (rows.first + place) for place in (0, rows.count - 1)]
    low, high = ends if bound.slope >= 0 else reversed(ends)
    start, stop = known.every
    if bound.step > 0:
        return replace(known, upper=minimum(known.upper, high + 1), every=(start, minimum(stop, low + 1)))
    return replace(known, lower=maximum(known.lower, low), every=(maximum(start, high), stop))


def _widened(known: KeyRange, condition: Joined, rows: Rows) -> KeyRange | None:
    """A window, or a number of keys at the beginning."""
    if len(condition.conditions) != 2 or known.prefix != 0:
        return None
    for first, other in (condition.conditions, condition.conditions[::-1]):
        bound = bound_of(first.expr, rows) if isinstance(first, AtMost) else None
        rest = narrowed_range(known, other, rows)
        if bound is not None and bound.step > 0 and bound.slope == 0 and rest is not None and rest.prefix == 0:
            return replace(rest, prefix=minimum(known.upper, bound.limit + 1))
    return None


@dataclass(frozen=True)
class Bound:
    """That a key is at most `limit + slope * row`, or at least that where `step` is -1; 0: that this is at most 0."""

    step: int
    slope: int
    limit: Size


def bound_of(expr: Size, rows: Rows) -> Bound | None:
    """What `expr <= 0` says of keys."""
    by_key = coefficient_of(expr, rows.key)
    by_row = None if by_key is None else coefficient_of(by_key[1], rows.row)
    if by_key is None or by_row is None:
        return None
    (step, _), (slope, rest) = by_key, by_row
    if not isinstance(step, int) or not isinstance(slope, int) or step not in (-1, 0, 1):
        return None
    if symbols_of(rest) & {rows.key, rows.row}:
        return None
    return Bound(step, -slope, -rest) if step > 0 else Bound(step, slope, rest)
