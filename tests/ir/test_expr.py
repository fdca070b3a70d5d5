"""Expressions mean what Python's integers mean, however they are simplified, substituted, printed and read."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from weft.errors import ParseError
from weft.ir.expr import (
    Size,
    as_int,
    ceildiv,
    coefficient_of,
    evaluate,
    floordiv,
    is_nonnegative,
    maximum,
    minimum,
    mod,
    product,
    simplify,
    substitute,
    symbol,
    symbols_of,
)
from weft.ir.size_text import parse_size

Meaning = Callable[[Mapping[str, int]], int]
Pair = tuple[Size, Meaning]

SIZES = ("s0", "s1", "s2")
VARIABLES = {"i": 7, "j": 64, "k": 12}
SEEDS = range(300)


def leaf(rng: random.Random, names: tuple[str, ...]) -> Pair:
    if rng.random() < 0.4:
        number = rng.choice([0, 1, 2, 3, 4, 8, 12, 64, -1, -5])
        return number, lambda values: number
    name = rng.choice(names)
    return symbol(name), lambda values: values[name]


def tree(rng: random.Random, names: tuple[str, ...], depth: int) -> Pair:
    """A random expression, and a function that computes it with Python's own integers."""
    if depth == 0:
        return leaf(rng, names)
    a, left = tree(rng, names, depth - 1)
    b, right = tree(rng, names, depth - 1)
    kind = rng.choice(["+", "+", "-", "*", "*", "//", "%", "max", "min", "neg"])
    divisor = rng.choice([1, 2, 3, 4, 12, 64])
    match kind:
        case "+":
            return a + b, lambda values: left(values) + right(values)
        case "-":
            return a - b, lambda values: left(values) - right(values)
        case "*":
            return a * b, lambda values: left(values) * right(values)
        case "//" if rng.random() < 0.3:
            name = rng.choice(names)
            return floordiv(a, symbol(name) + 1), lambda values: left(values) // (values[name] + 1)
        case "%" if rng.random() < 0.3:
            name = rng.choice(names)
            return mod(a, symbol(name) + 1), lambda values: left(values) % (values[name] + 1)
        case "//":
            return floordiv(a, divisor), lambda values: left(values) // divisor
        case "%":
            return mod(a, divisor), lambda values: left(values) % divisor
        case "max":
            return maximum(a, b), lambda values: max(left(values), right(values))
        case "min":
            return minimum(a, b), lambda values: min(left(values), right(values))
        case _:
            return -a, lambda values: -left(values)


def sizes(rng: random.Random) -> dict[str, int]:
    return {name: rng.choice([0, 1, 2, 3, 5, 8, 64, 77]) for name in SIZES}


def places(rng: random.Random) -> dict[str, int]:
    return {name: rng.randrange(bound) for name, bound in VARIABLES.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_expression_evaluates_like_python(seed: int) -> None:
    rng = random.Random(seed)
    size, meaning = tree(rng, SIZES, 4)
    for _ in range(10):
        values = sizes(rng)
        assert evaluate(size, values) == meaning(values), str(size)


@pytest.mark.parametrize("seed", SEEDS)
def test_simplifying_within_bounds_keeps_the_value(seed: int) -> None:
    rng = random.Random(seed)
    size, meaning = tree(rng, (*VARIABLES, "s0"), 4)
    simple = simplify(size, VARIABLES)
    for _ in range(20):
        values = sizes(rng) | places(rng)
        assert evaluate(simple, values) == meaning(values), f"{size} → {simple}"


@pytest.mark.parametrize("seed", SEEDS)
def test_substituting_is_evaluating_in_steps(seed: int) -> None:
    rng = random.Random(seed)
    size, meaning = tree(rng, SIZES, 4)
    inner, inner_meaning = rng.choice(
        [
            (symbol("s1") * 3 + 2, lambda values: values["s1"] * 3 + 2),
            (floordiv(symbol("s2"), 4), lambda values: values["s2"] // 4),
            (symbol("s1") * symbol("s2"), lambda values: values["s1"] * values["s2"]),
        ]
    )
    replaced = substitute(size, {"s0": inner})
    for _ in range(5):
        values = sizes(rng)
        known = values | {"s0": inner_meaning(values)}
        assert evaluate(replaced, values) == meaning(known), f"{size} with s0 = {inner} → {replaced}"
    values = sizes(rng)
    assert substitute(size, values) == meaning(values)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_printed_reads_back(seed: int) -> None:
    size, _ = tree(random.Random(seed), SIZES, 4)
    again = parse_size(str(size))
    assert again == size
    assert str(again) == str(size)
    assert hash(again) == hash(size)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_called_nonnegative_is(seed: int) -> None:
    rng = random.Random(seed)
    size, meaning = tree(rng, (*VARIABLES, "s0"), 3)
    always, within = is_nonnegative(size), is_nonnegative(size, VARIABLES)
    for _ in range(20):
        values = sizes(rng) | places(rng)
        if always or within:
            assert meaning(values) >= 0, str(size)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_linear_coefficient_splits_the_expression(seed: int) -> None:
    rng = random.Random(seed)
    size, meaning = tree(rng, SIZES, 3)
    split = coefficient_of(size, "s0")
    if split is not None:
        coefficient, rest = split
        assert "s0" not in symbols_of(coefficient) | symbols_of(rest)
        values = sizes(rng)
        assert evaluate(coefficient, values) * values["s0"] + evaluate(rest, values) == meaning(values)


def test_what_changes_nothing_makes_no_new_expression() -> None:
    size = 3 * symbol("s0") * symbol("s1") + symbol("s0") // 4 - 7
    assert size + 0 is size
    assert size * 1 is size
    assert size * 0 == 0
    assert coefficient_of(size, "s2") == (0, size)
    assert symbol("s0") is symbol("s0")


def test_a_product_with_a_negative_factor_is_not_nonnegative() -> None:
    i, j = symbol("i"), symbol("j")
    assert not is_nonnegative(floordiv(-j, 4) * i, {"i": 7, "j": 64})
    assert not is_nonnegative(i * minimum(3 - j, 0), {"i": 7, "j": 64})


def test_a_quotient_of_a_quotient_is_one_quotient() -> None:
    a = symbol("s0")
    assert floordiv(floordiv(a, 3) * 4 + 24, 12) == floordiv(a, 9) + 2


def test_equal_polynomials_are_equal_expressions() -> None:
    a, b, c = map(symbol, SIZES)
    assert (a + b) * c == c * b + a * c
    assert a * 12 * 64 == 768 * a
    assert a - a == 0
    assert product([a, 3, b]) == product([b, a, 3])
    assert hash(a + b) == hash(b + a)
    assert a != b
    assert as_int(a) is None
    assert as_int(4) == 4


def test_quotients_of_multiples_vanish() -> None:
    a, b = symbol("s0"), symbol("s1")
    assert floordiv(a * 768, 64) == a * 12
    assert mod(a * 768, 64) == 0
    assert floordiv(a * b, b) == a
    assert mod(a * b + 0, b) == 0
    assert floordiv(a * 64 + 5, 64) == a
    assert mod(a * 64 + 5, 64) == 5
    assert floordiv(a, 1) == a
    assert ceildiv(a * 4, 4) == a
    assert floordiv(7, -2) == -4


def test_bounds_remove_quotients_and_remainders() -> None:
    i, j = symbol("i"), symbol("j")
    bounds = {"i": 12, "j": 64}
    assert simplify(floordiv(i * 64 + j, 64), bounds) == i
    assert simplify(mod(i * 64 + j, 64), bounds) == j
    assert simplify(floordiv(symbol("s0"), 5) * 5 + mod(symbol("s0"), 5), bounds) == symbol("s0")
    assert simplify(mod(i, 13), bounds) == i


def test_extrema_of_comparable_sizes_are_decided() -> None:
    a = symbol("s0")
    assert maximum(a + 1, a) == a + 1
    assert minimum(a + 1, a) == a
    assert maximum(a, 0) == a
    assert str(maximum(a, 4)) == "max(s0, 4)"


@pytest.mark.parametrize("text", ["", "s0 +", "s0 ** 2", "f(s0)", "1.5", "s0 / 2"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_size(text)


def _random_size(rng: random.Random, depth: int) -> Size:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([symbol("s0"), symbol("s1"), rng.randint(1, 9), symbol("s2")])
    left, right = _random_size(rng, depth - 1), _random_size(rng, depth - 1)
    match rng.choice("+-*/%<>"):
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if right != 0:
            return floordiv(left, right)
        case "%" if right != 0:
            return mod(left, right)
        case "<":
            return minimum(left, right)
        case _:
            return maximum(left, right)


def test_what_is_printed_is_read_back() -> None:
    rng = random.Random(random.getrandbits(32))
    for _ in range(2000):
        try:
            size = _random_size(rng, 4)
        except ZeroDivisionError:
            continue
        assert parse_size(str(size)) == size, str(size)


def test_a_quotient_by_a_product() -> None:
    assert str(floordiv(symbol("s0"), symbol("s1") * 4)) == "(s0 // (s1*4))"


_IN_ANOTHER_PROCESS = """
import pickle, sys
from weft.ir.expr import floordiv, symbol
n = symbol("n")
read = pickle.load(sys.stdin.buffer)
made = (n * 2 + 1, floordiv(n, 3) * 4)
assert list(read) == list(made), (read, made)
assert str(read[0] - n * 2) == "1" and str(read[1] - made[1]) == "0" and len({*read, *made}) == 2
"""


def test_another_process_takes_expressions_for_its_own() -> None:
    n = symbol("n")
    sent = (n * 2 + 1, floordiv(n, 3) * 4)
    assert hash(sent) and str(sent)
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _IN_ANOTHER_PROCESS]
        subprocess.run(command, input=pickle.dumps(sent), env=environment, check=True)
