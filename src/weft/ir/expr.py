"""Integer expressions: symbolic tensor sizes and, with iteration variables as symbols, addresses.

An expression is a polynomial over symbols, quotients, remainders and extrema, kept in one canonical form, so that
equality is structural: `s0*12*64 == 768*s0`. A size that is known is a plain `int`; `Size` is either. Symbols stand for
sizes and are at least 0; iteration variables are bounded by the `Bounds` that a caller passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from operator import attrgetter
from typing import Any, TypeAlias

from weft.forks import cached_property


@dataclass(frozen=True)
class Atom:
    """A symbol, or an operation the polynomial form cannot express (`//`, `%`, `max`, `min`)."""

    kind: str
    name: str = ""
    args: tuple[Size, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.name, self.args))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Atom, (self.kind, self.name, self.args)  # another process hashes strings in another way

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """As it is printed, and sorted by."""
        if self.kind == "symbol":
            return self.name
        if self.kind in ("max", "min"):
            return f"{self.kind}({', '.join(map(str, self.args))})"
        return f"({_grouped(self.args[0])} {self.kind} {_grouped(self.args[1])})"

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in it."""
        return frozenset([self.name]) if self.kind == "symbol" else frozenset[str]().union(*map(symbols_of, self.args))


Monomial: TypeAlias = tuple[Atom, ...]
Bounds: TypeAlias = "Mapping[str, Size]"


def _grouped(size: Size) -> str:
    """An operand of `//` or `%`, which bind as tightly as `*`: in parentheses unless it is one word."""
    text = str(size)
    return text if text.isalnum() or text.isidentifier() else f"({text})"


class Expr:
    """A polynomial that is not a constant. Made by arithmetic on `symbol(...)`; never built with its constructor."""

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Expr, (self.terms,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [str(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.append(str(abs(coefficient)))
            sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
            text += sign + "*".join(factors)
        return text

    def __add__(self, other: Size) -> Size:
        if other == 0:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _canonical(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return Expr(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Size) -> Size:
        return self + (-other)

    def __rsub__(self, other: Size) -> Size:
        return (-self) + other

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):  # terms stay in their order
            scaled = tuple((monomial, coefficient * other) for monomial, coefficient in self.terms)
            return self if other == 1 else Expr(scaled) if other else 0
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                monomial = tuple(sorted(left + right, key=_text_of)) if left and right else left or right
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _canonical(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return mod(self, other)

    def __rmod__(self, other: Size) -> Size:
        return mod(other, self)

    @cached_property
    def is_polynomial(self) -> bool:
        """Whether there is nothing in it but symbols: no quotients, remainders or extrema."""
        return all(atom.kind == "symbol" for monomial, _ in self.terms for atom in monomial)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in the expression, those inside quotients too."""
        return frozenset[str]().union(*(atom.symbols for monomial, _ in self.terms for atom in monomial))


Size: TypeAlias = int | Expr


@lru_cache(maxsize=1024)
def symbol(name: str) -> Expr:
    """The expression that is this symbol alone."""
    return Expr((((Atom("symbol", name),), 1),))


def symbols_of(size: Size) -> frozenset[str]:
    return size.symbols if isinstance(size, Expr) else frozenset()


def as_int(size: Size) -> int | None:
    """The value of a size that is known, else None."""
    return size if isinstance(size, int) else None


def addends(size: Size) -> tuple[Size, ...]:
    """The terms that an expression is the sum of."""
    return tuple(_canonical({monomial: coefficient}) for monomial, coefficient in _terms(size))


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = size * result
    return result


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Expr) else ((((), size),) if size else ())


def _canonical(terms: Mapping[Monomial, int]) -> Size:
    kept = [(monomial, coefficient) for monomial, coefficient in terms.items() if coefficient]
    if not kept:
        return 0
    if len(kept) == 1:
        return Expr(tuple(kept)) if kept[0][0] else kept[0][1]
    kept.sort(key=_order)
    return Expr(tuple(kept))


_text_of = attrgetter("text")


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return -len(term[0]), [atom.text for atom in term[0]]


def _atom(kind: str, *args: Size) -> Expr:
    return Expr((((Atom(kind, "", args),), 1),))


def floordiv(a: Size, b: Size, bounds: Bounds | None = None) -> Size:
    """`a // b`, simplified where `a` is a multiple of `b` plus a part that provably lies in [0, b)."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1
    quotient, rest = split_multiple(a, b)
    if _within(rest, b, bounds):
        return quotient
    if isinstance(b, int) and isinstance(rest, Expr) and (common := gcd(b, *(c for _, c in rest.terms))) > 1:
        rest, b = _divided(rest, common), b // common
    match rest:
        case Expr(terms=(((Atom(kind="//", args=(inner, divisor)),), 1),)):
            return quotient + floordiv(inner, divisor * b, bounds)
        case _:
            return quotient + _atom("//", rest, b)


def mod(a: Size, b: Size, bounds: Bounds | None = None) -> Size:
    """`a % b`, simplified like `floordiv`."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1 or a == b:
        return 0
    _, rest = split_multiple(a, b)
    if _within(rest, b, bounds):
        return rest
    return _atom("%", rest, b)


def ceildiv(a: Size, b: Size) -> Size:
    return floordiv(a + b - 1, b)


def maximum(a: Size, b: Size) -> Size:
    return _extreme("max", a, b)


def minimum(a: Size, b: Size) -> Size:
    return _extreme("min", a, b)


def _extreme(kind: str, a: Size, b: Size) -> Size:
    difference = a - b
    if is_nonnegative(difference):
        return a if kind == "max" else b
    if is_nonnegative(-difference):
        return b if kind == "max" else a
    return _atom(kind, a, b)


def is_nonnegative(size: Size, bounds: Bounds | None = None) -> bool:
    """Whether the expression is provably at least 0: symbols are sizes, iteration variables lie in [0, bound)."""
    if isinstance(size, int):
        return size >= 0
    if bounds:
        size = _lower_bound(size, bounds)
        if isinstance(size, int):
            return size >= 0
    return all(c >= 0 and all(_atom_nonnegative(atom) for atom in m) for m, c in size.terms)


def _atom_nonnegative(atom: Atom) -> bool:
    match atom.kind:
        case "symbol" | "%":
            return True
        case "//" | "min":
            return all(is_nonnegative(arg) for arg in atom.args)
        case _:
            return any(is_nonnegative(arg) for arg in atom.args)


def _lower_bound(size: Expr, bounds: Bounds) -> Size:
    """The expression with every bounded variable of negative coefficient at its greatest value, others at 0."""
    result: Size = 0
    for monomial, coefficient in size.terms:
        factor: Size = coefficient
        monotone = all(map(_atom_nonnegative, monomial))  # else the extreme may lie at the other end
        for atom in monomial:
            if monotone and atom.kind == "symbol" and atom.name in bounds:
                factor = factor * (bounds[atom.name] - 1) if coefficient < 0 else 0
            else:
                factor = factor * Expr((((atom,), 1),))
        result = result + factor
    return result


def _within(rest: Size, b: Size, bounds: Bounds | None) -> bool:
    if isinstance(rest, int):
        return rest == 0 or (isinstance(b, int) and 0 <= rest < b)
    return bool(bounds) and is_nonnegative(rest, bounds) and is_nonnegative(b - 1 - rest, bounds)


def split_multiple(a: Size, b: Size) -> tuple[Size, Size]:
    """`(q, r)` with a == q*b + r, where q collects the terms of `a` that `b` divides."""
    if isinstance(b, int):
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in _terms(a):
            if coefficient % b == 0:
                quotient[monomial] = coefficient // b
            elif not monomial:
                quotient[monomial], rest[monomial] = divmod(coefficient, b)
            else:
                rest[monomial] = coefficient
        return _canonical(quotient), _canonical(rest)
    if len(b.terms) == 1:
        divisor, scale = b.terms[0]
        quotient, rest = {}, {}
        for monomial, coefficient in _terms(a):
            left = _without(monomial, divisor)
            if left is not None and coefficient % scale == 0:
                quotient[left] = coefficient // scale
            else:
                rest[monomial] = coefficient
        return _canonical(quotient), _canonical(rest)
    return (1, 0) if a == b else (0, a)


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _divided(size: Size, by: int) -> Size:
    return _canonical({monomial: coefficient // by for monomial, coefficient in _terms(size)})


def constant_term(size: Size) -> int:
    """What is left of an expression where all symbols, quotients and extrema are 0."""
    return dict(_terms(size)).get((), 0)


def coefficient_of(size: Size, name: str) -> tuple[Size, Size] | None:
    """`(c, rest)` with size == c*name + rest, or None when the symbol occurs otherwise than linearly."""
    if name not in symbols_of(size):
        return 0, size
    c: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    (((own,), _),) = symbol(name).terms
    for monomial, value in _terms(size):
        left = _without(monomial, (own,))
        target = rest if left is None else c
        kept = monomial if left is None else left
        if any(name in atom.symbols for atom in kept):
            return None
        target[kept] = value
    return _canonical(c), _canonical(rest)


def substitute(size: Size, values: Mapping[str, Size], bounds: Bounds | None = None) -> Size:
    """The expression with symbols replaced, simplified again on the way."""
    if isinstance(size, int) or not (size.symbols & values.keys()):
        return size
    result: Size = 0
    for monomial, coefficient in size.terms:
        factor: Size = coefficient
        for atom in monomial:
            factor = factor * _substitute_atom(atom, values, bounds)
        result = result + factor
    return result


def _substitute_atom(atom: Atom, values: Mapping[str, Size], bounds: Bounds | None) -> Size:
    if atom.kind == "symbol":
        return values.get(atom.name, Expr((((atom,), 1),)))
    a, b = (substitute(arg, values, bounds) for arg in atom.args)
    return _OPERATIONS[atom.kind](a, b, bounds)


def simplify(size: Size, bounds: Bounds) -> Size:
    """Use the bounds of the iteration variables to remove quotients and remainders, and join `(a//b)*b + a%b`."""
    if isinstance(size, int) or size.is_polynomial:
        return size
    rebuilt: Size = 0
    for monomial, coefficient in size.terms:
        factor: Size = coefficient
        for atom in monomial:
            if atom.kind == "symbol":
                factor = factor * Expr((((atom,), 1),))
            else:
                a, b = (simplify(arg, bounds) for arg in atom.args)
                factor = factor * _OPERATIONS[atom.kind](a, b, bounds)
        rebuilt = rebuilt + factor
    return _join_divmod(rebuilt)


def _join_divmod(size: Size) -> Size:
    for monomial, coefficient in _terms(size):
        for atom in monomial:
            if atom.kind != "%":
                continue
            a, b = atom.args
            others = _without(monomial, (atom,)) or ()
            scale = _canonical({others: coefficient})
            joined = size - scale * Expr((((atom,), 1),)) - scale * b * floordiv(a, b) + scale * a
            if len(_terms(joined)) < len(_terms(size)) or _divisions(joined) < _divisions(size):
                return _join_divmod(joined)
    return size


def divides(size: Size) -> bool:
    """Whether anything in a size is divided: it may then be the same for different values of its symbols."""
    atoms = [atom for monomial, _ in _terms(size) for atom in monomial]
    return any(atom.kind in ("//", "%") or any(map(divides, atom.args)) for atom in atoms)


def _divisions(size: Size) -> int:
    return sum(atom.kind in ("//", "%") for monomial, _ in _terms(size) for atom in monomial)


_OPERATIONS: dict[str, Callable[[Size, Size, Bounds | None], Size]] = {
    "//": floordiv,
    "%": mod,
    "max": lambda a, b, _: maximum(a, b),
    "min": lambda a, b, _: minimum(a, b),
}


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number an expression stands for, given every symbol's value."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms:
        for atom in monomial:
            if atom.kind == "symbol":
                coefficient *= values[atom.name]
                continue
            a, b = (evaluate(arg, values) for arg in atom.args)
            coefficient *= _NUMBERS[atom.kind](a, b)
        total += coefficient
    return total
