"""Numbers that a program computes in floats from sizes, such as `int(s0 ** 0.5)`: calls do it as Python does.

To the graph a whole number is a symbol like any other; floats and conditions on sizes may be results of it. Where
floats are exact (`int(1.5 * s0)`, `ceil(s0 / 3)`) there is no need of one: the number is a quotient of sizes.
"""

# Sympy has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from weft.errors import ParseError, UnsupportedError
from weft.ir.expr import Size, ceildiv, evaluate, floordiv, symbol, symbols_of

ROUNDED = ("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt")
"""What makes a whole number of a float."""
_OPERATORS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "TruncToInt": (1, math.trunc),
    "FloorToInt": (1, math.floor),
    "CeilToInt": (1, math.ceil),
    "RoundToInt": (1, round),
    "ToFloat": (1, float),
    "Abs": (1, abs),
    "Add": (2, operator.add),
    "Mul": (2, operator.mul),
    "Max": (2, max),
    "Min": (2, min),
    "IntTrueDiv": (2, operator.truediv),
    "FloatTrueDiv": (2, operator.truediv),
    "FloatPow": (2, operator.pow),
    "Pow": (2, operator.pow),
    "GreaterThan": (2, operator.ge),
    "StrictGreaterThan": (2, operator.gt),
    "LessThan": (2, operator.le),
    "StrictLessThan": (2, operator.lt),
    "Equality": (2, operator.eq),
    "Unequality": (2, operator.ne),
    "And": (2, operator.and_),
    "Or": (2, operator.or_),
    "Not": (1, operator.not_),
    **{
        f"OpaqueUnaryFn_{name}": (1, getattr(math, name))
        for name in (
            *("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"),
        )
    },
}
"""How many operands each function of torch's symbolic expressions takes here, and what Python computes."""
_OF_NONNEGATIVE = (
    *(*ROUNDED, "ToFloat", "Identity", "Add", "Mul", "Max", "Min", "IntTrueDiv", "FloatTrueDiv"),
    *("FloatPow", "Pow", "OpaqueUnaryFn_sqrt"),
)
"""What is not negative if no operand is: torch knows of no bounds of a power of a float."""
_SEVERAL = ("Add", "Mul", "Max", "Min", "And", "Or")
CONDITIONS = ("GreaterThan", "StrictGreaterThan", "LessThan", "StrictLessThan", "Equality", "Unequality")
_LARGEST_FACTOR = 1 << 20
"""Up to this, a factor's product with a size below 2**32 is exact in f64: then it may be taken as a fraction."""


@dataclass(frozen=True)
class FloatFormula:
    """A computation in postfix order: numbers, functions by name, and operands, `@0` and so on, which are sizes."""

    words: tuple[str | int | float, ...]
    operands: tuple[Size, ...]

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset().union(*map(symbols_of, self.operands))

    def value(self, sizes: Mapping[str, int]) -> int:
        return int(self.number(sizes))

    def number(self, sizes: Mapping[str, int]) -> float:
        """The value as Python has it: a whole number, a float or a truth value."""
        stack: list[float] = []
        for word in self.words:
            if not isinstance(word, str):
                stack.append(word)
            elif word.startswith("@"):
                stack.append(evaluate(self.operands[int(word[1:])], sizes))
            else:
                count, function = _OPERATORS[word]
                arguments = stack[-count:]
                del stack[-count:]
                stack.append(function(*arguments))
        (result,) = stack
        return result

    def check(self) -> None:
        """Raise where the words are no formula: stored ones may have been altered."""
        height = 0
        for word in self.words:
            place = word[1:] if isinstance(word, str) and word.startswith("@") else ""
            if not isinstance(word, str) or (place.isdecimal() and int(place) < len(self.operands)):
                height += 1
            elif word in _OPERATORS and height >= _OPERATORS[word][0]:
                height -= _OPERATORS[word][0] - 1
            else:
                raise ParseError(f"a stored formula has the word {word!r} in a wrong place")
        if height != 1:
            raise ParseError("a stored formula has no single value")


_formulas: WeakKeyDictionary[Any, dict[str, FloatFormula]] = WeakKeyDictionary()


def formulas(shape_env: Any) -> Mapping[str, FloatFormula]:
    """The symbols that stand for what is computed in floats."""
    return _formulas.get(shape_env, {})


def computed_size(expression: Any, shape_env: Any, convert: Callable[[Any, Any], Size]) -> Size:
    """A whole number that is computed in floats, or a condition, which is 1 or 0.

    `convert` gives what an expression of integers stands for.
    """
    exact = _quotient(expression, shape_env, convert)
    if exact is not None:
        return exact
    if type(expression).__name__ not in CONDITIONS and not _is_nonnegative(expression, shape_env):
        raise UnsupportedError(f"the size {expression} is computed in floats and may be negative")
    formula = formula_of(expression, shape_env, convert)
    if not formula.symbols:
        return formula.value({})
    digest = hashlib.sha256(repr((list(formula.words), list(map(str, formula.operands)))).encode()).hexdigest()
    name = f"computed_{digest[:16]}"
    _formulas.setdefault(shape_env, {})[name] = formula
    return symbol(name)


def formula_of(expression: Any, shape_env: Any, convert: Callable[[Any, Any], Size]) -> FloatFormula:
    """How calls compute a number, a float or a condition; `convert` gives what an expression of integers stands for."""
    words: list[str | int | float] = []
    operands: list[Size] = []
    _append(expression, words, operands, lambda part: convert(part, shape_env))
    return FloatFormula(tuple(words), tuple(operands))


def _is_nonnegative(expression: Any, shape_env: Any) -> bool:
    if type(expression).__name__ in _OF_NONNEGATIVE:
        return all(_is_nonnegative(argument, shape_env) for argument in expression.args)
    return bool(shape_env.bound_sympy(expression).lower >= 0)


def _append(
    expression: Any, words: list[str | int | float], operands: list[Size], convert: Callable[[Any], Size]
) -> None:
    name = type(expression).__name__
    if expression.is_Number:
        words.append(int(expression) if expression.is_Integer else float(expression))
    elif expression.is_integer and name not in ROUNDED:
        words.append(f"@{len(operands)}")
        operands.append(convert(expression))
    elif name == "Identity":
        _append(expression.args[0], words, operands, convert)
    elif name in _OPERATORS:
        for number, argument in enumerate(expression.args):
            _append(argument, words, operands, convert)
            if number and name in _SEVERAL:
                words.append(name)
        if name not in _SEVERAL:
            words.append(name)
    else:
        raise UnsupportedError(f"{name} in {expression} is not computed from sizes")


def _quotient(expression: Any, shape_env: Any, convert: Callable[[Any, Any], Size]) -> Size | None:
    """`int(1.5 * s0)` is `3 * s0 // 2`, how resizing by a factor says what comes out; `ceil(s0 / 3)` is exact too."""
    name = type(expression).__name__
    if name not in ("TruncToInt", "FloorToInt", "CeilToInt"):
        return None
    (inner,) = expression.args
    divide = ceildiv if name == "CeilToInt" else floordiv
    if type(inner).__name__ == "IntTrueDiv":
        size, divisor = inner.args
        if size.is_Symbol and divisor.is_Integer and divisor > 0:
            return divide(convert(size, shape_env), int(divisor))
        return None
    factors = inner.args if type(inner).__name__ == "Mul" else (inner,)
    numbers = [factor for factor in factors if factor.is_Float or factor.is_Integer]
    sizes = [factor.args[0] for factor in factors if type(factor).__name__ == "ToFloat"]
    if len(sizes) != 1 or len(numbers) > 1 or len(factors) != len(sizes) + len(numbers) or not sizes[0].is_Symbol:
        return None
    factor = float(numbers[0]) if numbers else 1.0
    above, below = factor.as_integer_ratio() if 0 < factor < _LARGEST_FACTOR else (0, 0)
    if not 0 < above <= _LARGEST_FACTOR or below > _LARGEST_FACTOR:
        return None
    return divide(convert(sizes[0], shape_env) * above, below)
