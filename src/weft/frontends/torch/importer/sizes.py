"""Torch's symbolic integers as Weft's sizes, and how a call's arguments give the symbols their values."""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from weft.errors import UnsupportedError
from weft.frontends.torch.importer.float_sizes import CONDITIONS, ROUNDED, FloatFormula, computed_size, formula_of
from weft.ir.expr import (
    Expr,
    Size,
    ceildiv,
    coefficient_of,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    product,
    simplify,
    split_multiple,
    substitute,
    symbol,
    symbols_of,
)


def size_of(value: int | torch.SymInt) -> Size:
    """The size that an integer of a captured graph stands for."""
    if not isinstance(value, torch.SymInt):
        return value
    node: Any = value.node
    known = node.maybe_as_int()
    if known is not None:
        return known
    try:
        expression = node.expr
    except AttributeError:
        raise UnsupportedError(f"the size {value} has no symbolic expression") from None
    return _converted(expression, node.shape_env)


def size_of_expression(expression: Any, shape_env: Any) -> Size:
    """The size that a sympy expression of integers stands for."""
    return _converted(expression, shape_env)


def formula_of_number(value: torch.SymFloat | torch.SymBool) -> FloatFormula:
    """How calls compute a float or a condition from sizes."""
    node: Any = value.node
    return formula_of(node.expr, node.shape_env, _converted)


def sizes_of(values: Iterable[int | torch.SymInt]) -> tuple[Size, ...]:
    return tuple(size_of(value) for value in values)


def _quotient(a: Size, b: Size) -> Size:
    return floordiv(a, b)


def _itself(a: Size) -> Size:
    return a


def _remainder(a: Size, b: Size) -> Size:
    return mod(a, b)


def _modular(a: Size, b: Size, c: Size) -> Size:
    return mod(floordiv(a, b), c)


def _power(base: Size, exponent: Size) -> Size:
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError(f"the power {base} ** {exponent} is not a size")
    result: Size = 1
    for _ in range(exponent):
        result = result * base
    return result


# Functions of sympy and of torch's extensions of it. What may be negative is written as a difference of symbols that
# are not (`_signed`), of which quotients round down as torch's do where what divides is positive. Others than these are
# only converted where no symbol may be negative.
_OF_ANY_SIGN = {"Add", "Mul", "Pow", "PowByNatural", "Identity", "Max", "Min"}
_BY_A_POSITIVE = {"FloorDiv", "CleanDiv", "CeilDiv", "PythonMod"}
_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "FloorDiv": _quotient,
    "CleanDiv": _quotient,
    "CeilDiv": ceildiv,
    "Mod": _remainder,
    "PythonMod": _remainder,
    "ModularIndexing": _modular,
    "Pow": _power,
    "PowByNatural": _power,
    "Identity": _itself,
}


def _converted(expression: Any, shape_env: Any) -> Size:
    if (known := _facts.get(shape_env, _NO_FACTS).equal.get(expression)) is not None:
        return known
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return _signed(expression, shape_env)
    name = type(expression).__name__
    takes_any = name in _OF_ANY_SIGN or (name in _BY_A_POSITIVE and _positive(expression.args[1], shape_env))
    if not takes_any and not all(_nonnegative(s, shape_env) for s in expression.free_symbols):
        raise UnsupportedError(f"the size {expression} takes a value that may be negative")
    if name in (*ROUNDED, *CONDITIONS):
        return computed_size(expression, shape_env, _converted)
    arguments = [_converted(argument, shape_env) for argument in expression.args]
    match name:
        case "Add":
            return sum(arguments[1:], arguments[0])
        case "Mul":
            result: Size = 1
            for argument in arguments:
                result = result * argument
            return result
        case "Max":
            return _folded(maximum, arguments)
        case "Min":
            return _folded(minimum, arguments)
        case _ if name in _FUNCTIONS:
            return _FUNCTIONS[name](*arguments)
        case _:
            raise UnsupportedError(f"{name} in the size {expression} is not a function of sizes")


def _folded(function: Callable[[Size, Size], Size], sizes: Sequence[Size]) -> Size:
    result = sizes[0]
    for size in sizes[1:]:
        result = function(result, size)
    return result


def _nonnegative(symbol_: Any, shape_env: Any) -> bool:
    if symbol_.is_nonnegative:
        return True
    bounds = shape_env.var_to_range.get(symbol_)
    return bounds is not None and bool(bounds.lower >= 0)


def _positive(expression: Any, shape_env: Any) -> bool:
    if expression.is_positive is not None:
        return bool(expression.is_positive)
    bounds = shape_env.var_to_range.get(expression)
    return bounds is not None and bool(bounds.lower > 0)


@dataclass(frozen=True)
class _Facts:
    """What every call meets of symbols by themselves: what divides them, and the values of those that have but one."""

    divisors: Mapping[str, int]
    values: Mapping[str, int]
    equal: dict[Any, Size] = field(default_factory=dict[Any, Size])
    """What else is known of the value of an expression of torch's."""


_DIVISIONS = ("FloorDiv", "CleanDiv")
_GREATEST_DIVISOR = 64
_facts: WeakKeyDictionary[Any, _Facts] = WeakKeyDictionary()
_NO_FACTS = _Facts({}, {})


def fix_facts(shape_env: Any) -> None:
    """From here on take a size that calls must give as a multiple (`s0 % 10 == 0`) as so many times another symbol.

    Then `s0 // 10`, which shapes are made of, divides it; and where that must be 3, the size is 30. What tracing comes
    to know later is left out: a size of a graph is always the same.
    """
    # Those of the forward graph, whose sizes a backward graph's are: conditions are read without them.
    before = _facts.pop(shape_env, _NO_FACTS)
    divisors: dict[str, int] = {}
    quotients: list[tuple[Any, int]] = []
    fixed: dict[Any, Size] = {}
    for guard in shape_env.guards:
        if type(guard.expr).__name__ != "Equality":
            continue
        left, right = guard.expr.args
        if (divided := _whole_multiple(left, right, shape_env)) is not None:
            divisors[divided[0]] = math.lcm(divisors.get(divided[0], 1), divided[1])
        factor, computed = left.as_coeff_Mul()
        if not right.is_Integer or right % factor != 0:
            continue
        value, name = int(right / factor), type(computed).__name__
        if name in ROUNDED:
            fixed[computed] = value
        if name not in ("Mod", "PythonMod", *_DIVISIONS):
            continue
        dividend, divisor = computed.args
        if not dividend.is_Symbol or not divisor.is_Integer or divisor < 2 or not _nonnegative(dividend, shape_env):
            if name in _DIVISIONS:
                fixed[computed] = value
            continue
        if name.endswith("Div"):
            quotients.append((computed, value))
        elif value == 0:
            divisors[str(dividend)] = math.lcm(divisors.get(str(dividend), 1), int(divisor))
    values: dict[str, int] = {}
    for quotient, value in quotients:
        dividend, divisor = str(quotient.args[0]), int(quotient.args[1])
        if divisors.get(dividend, 1) % divisor == 0:
            values[dividend] = value * divisor
    _facts[shape_env] = _Facts(divisors, values, {**fixed, **before.equal})


def _whole_multiple(left: Any, right: Any, shape_env: Any) -> tuple[str, int] | None:
    """The name and the divisor of a size that must be a multiple where two of its expressions are to be equal.

    So it is of `s0 == 4 * (s0 // 4)`, and of the halves of a tensor, `(s0 + 1) // 2 == s0 - (s0 + 1) // 2`: they differ
    at every remainder but 0.
    """
    symbols = left.free_symbols | right.free_symbols
    quotients = [*_quotients(left), *_quotients(right)]
    if len(symbols) != 1 or not quotients or not all(quotient.args[1].is_Integer for quotient in quotients):
        return None
    (size,) = symbols
    divisor = math.lcm(*(int(quotient.args[1]) for quotient in quotients))
    if not 1 < divisor <= _GREATEST_DIVISOR or not _nonnegative(size, shape_env):
        return None
    try:
        difference = _converted(left, shape_env) - _converted(right, shape_env)
    except UnsupportedError:
        return None
    name = str(size)
    at = [simplify(substitute(difference, {name: symbol(name) * divisor + rest}), {}) for rest in range(divisor)]
    return (name, divisor) if at[0] == 0 and all(isinstance(each, int) and each != 0 for each in at[1:]) else None


def _quotients(expression: Any) -> list[Any]:
    inner = [quotient for argument in expression.args for quotient in _quotients(argument)]
    return [expression, *inner] if type(expression).__name__ in _DIVISIONS else inner


def note_reshape(source: Sequence[Any], asked: Sequence[Any], result: Sequence[Any]) -> None:
    """From here on take what tracing says of a reshaped tensor's sizes for what the reshape asks for.

    Where torch merges and splits dimensions it writes 4 as `n // (n // 4)`, and what -1 stands for as a product with a
    quotient; `asked` may hold one -1.
    """
    if len(asked) != len(result):
        return
    count, known = product(sizes_of(source)), product(sizes_of(size for size in asked if not _is_rest(size)))
    for size, traced in zip(asked, result, strict=True):
        if not isinstance(traced, torch.SymInt) or traced.node.maybe_as_int() is not None:
            continue
        if _is_rest(size):
            wanted, remainder = split_multiple(count, known) if known != 0 else (0, 1)
            if remainder != 0:
                continue
        else:
            wanted = size_of(size)
        if size_of(traced) != wanted and (facts := _facts.get(traced.node.shape_env)) is not None:
            facts.equal[traced.node.expr] = wanted


def _is_rest(size: Any) -> bool:
    return isinstance(size, int) and size == -1


def multiple(symbol_: Any, shape_env: Any) -> tuple[str, int]:
    """The name of the symbol that a symbol of torch's is a multiple of, and the factor: its own and 1, mostly."""
    factor = _facts.get(shape_env, _NO_FACTS).divisors.get(str(symbol_), 1)
    return (str(symbol_), 1) if factor == 1 else (f"{symbol_}_by_{factor}", factor)


def _signed(symbol_: Any, shape_env: Any) -> Size:
    """A symbol of torch's in symbols of Weft's, which are at least 0: an integer argument need not be.

    One that may be negative is how far it lies above 0 less how far it lies below; one of the two is 0.
    """
    known = _facts.get(shape_env, _NO_FACTS).values.get(str(symbol_))
    if known is not None:
        return known
    name, factor = multiple(symbol_, shape_env)
    if _nonnegative(symbol_, shape_env):
        return symbol(name) * factor
    bounds = shape_env.var_to_range.get(symbol_)
    below = symbol(f"{name}_below")
    return -below if bounds is not None and bool(bounds.upper <= 0) else symbol(f"{name}_above") - below


@dataclass(frozen=True)
class Source:
    """A number that is known when the graph is called: an integer argument, or a size of a tensor argument.

    With a `sign`, how far the number lies on that side of 0.
    """

    argument: int
    dim: int | None = None
    sign: int = 0

    def read(self, arguments: Sequence[Any]) -> int:
        value = arguments[self.argument]
        number = int(value) if self.dim is None else value.shape[self.dim]
        return max(number * self.sign, 0) if self.sign else number


def integer_sources(argument: int, value: torch.SymInt) -> list[tuple[Source, Size]]:
    """What an integer argument tells: its own value and, of one that may be negative, what its symbols stand for."""
    size = size_of(value)
    sources = [(Source(argument), size)]
    expression: Any = value.node.expr
    if expression.is_Symbol and size != symbol(str(expression)):
        # What is known of its sign may grow while the graph is imported: any of its forms may be needed.
        name = str(expression)
        sources += [
            (Source(argument, sign=1), symbol(f"{name}_above")),
            (Source(argument, sign=-1), symbol(f"{name}_below")),
        ]
        sources.append((Source(argument), symbol(name)))
    return sources


@dataclass(frozen=True)
class SymbolRule:
    """A symbol's value: `(source - rest) / scale`, where `rest` is made of symbols that are known by then.

    With a `formula`, no source is looked at: it is computed of such symbols.
    """

    name: str
    source: Source
    scale: int = 1
    rest: Size = 0
    formula: FloatFormula | None = None

    @property
    def needed(self) -> frozenset[str]:
        """The symbols that have to be known before."""
        return frozenset(symbols_of(self.rest)) if self.formula is None else self.formula.symbols


@dataclass(frozen=True)
class SymbolReader:
    """Reads the values of all symbols off the arguments of a call."""

    rules: tuple[SymbolRule, ...]

    def __call__(self, arguments: Sequence[Any]) -> dict[str, int]:
        values: dict[str, int] = {}
        for rule in self.rules:
            if rule.formula is not None:
                values[rule.name] = rule.formula.value(values)
                continue
            value = rule.source.read(arguments)
            if rule.scale != 1 or rule.rest != 0:
                value = (value - evaluate(rule.rest, values)) // rule.scale
            values[rule.name] = value
        return values


def read_symbols(
    known: Sequence[tuple[Source, Size]], needed: set[str], computed: Mapping[str, FloatFormula] | None = None
) -> SymbolReader:
    """How to get the symbols that are `needed` from the sizes that are `known` at a call, or compute them of others."""
    rules: list[SymbolRule] = []
    found: set[str] = set()
    # Sizes that are a symbol alone come first, integers before tensor sizes: they are the quickest to read.
    pending = [(source, size) for source, size in known if isinstance(size, Expr)]
    pending.sort(key=lambda item: (not str(item[1]).isidentifier(), item[0].dim is not None))
    progress = True
    while progress:
        progress = False
        for source, size in pending:
            unknown = symbols_of(size) - found
            if len(unknown) != 1:
                continue
            (name,) = unknown
            scale, rest = coefficient_of(size, name) or (None, 0)
            if not isinstance(scale, int):
                continue
            rules.append(SymbolRule(name, source, scale, rest))
            found.add(name)
            progress = True
    for name, formula in (computed or {}).items():  # in the order in which one may be made of another
        if name not in found and formula.symbols <= found:
            rules.append(SymbolRule(name, Source(0), formula=formula))
            found.add(name)
    missing = sorted(needed - found)
    if missing:
        raise UnsupportedError(
            f"the sizes {', '.join(missing)} are only known while the graph runs",
            hint="sizes that depend on data keep a graph from being compiled as a whole",
        )
    return SymbolReader(_pruned(rules, set(needed)))


def _pruned(rules: Sequence[SymbolRule], needed: set[str]) -> tuple[SymbolRule, ...]:
    kept: list[SymbolRule] = []
    for rule in reversed(rules):
        if rule.name in needed:
            needed |= rule.needed
            kept.append(rule)
    return tuple(reversed(kept))
