"""Functions of f64 without a C library: against the library, and what C says of limits."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]  # comes with torch
import numpy as np
import pytest

from tests.seeds import generator
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.math_series import SERIES
from weft.ir.types import f64
from weft.tile.functions import FUNCTIONS

COUNT = 3000
SPECIAL = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 2.3e-308, 1.7e308, -1.7e308, 3.0, -3.0, 1e300),
        *(709.7, -709.7, 710.4, -710.4, 711.0),  # around where e^x and sinh x have no number any more
    ]
)
BAR = {"tan": 6.0, "erfinv": 16.0, "digamma": 64.0, "lgamma": 8.0}


def run(jit, name: str, *arrays: np.ndarray, lanes: int = 1) -> np.ndarray:
    return jit.run(
        lambda b, args: SERIES[name](*(E(b, arg) for arg in args)).v, list(arrays), [f64] * len(arrays), f64, lanes
    )


def samples(name: str) -> np.ndarray:
    rng = generator()
    within = rng.uniform(-1, 1, COUNT)
    either = rng.choice([-1.0, 1.0], COUNT) * np.exp(rng.uniform(-40, 6, COUNT))
    match name:
        case "log" | "log2" | "log10":
            return np.exp(rng.uniform(-700, 700, COUNT))
        case "log1p":
            return np.concatenate([np.expm1(rng.uniform(-30, 30, COUNT)), either[either > -1]])
        case "asin" | "acos" | "atanh" | "erfinv":
            return within
        case "acosh":
            return 1 + np.exp(rng.uniform(-20, 300, COUNT))
        case "sin" | "cos" | "tan":
            multiples = np.arange(1, 500) * (math.pi / 2)
            return np.concatenate([either, multiples, np.exp(rng.uniform(0, 700, COUNT))])
        case "lgamma" | "digamma":
            return np.concatenate([rng.uniform(0.01, 30, COUNT), 1 + within * 1e-6, np.exp(rng.uniform(1, 80, COUNT))])
        case "erfc":
            return rng.uniform(-6, 26, COUNT)
        case _:
            return either


def distance(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        apart = np.abs(got - want) / np.spacing(np.maximum(np.abs(want), 1e-300))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


@pytest.mark.parametrize("name", [name for name in SERIES if FUNCTIONS[name].arity == 1])
def test_one_operand(jit, name: str) -> None:
    for x in (samples(name), SPECIAL):
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name].numpy(x)
        if name == "erfc" and x is not SPECIAL:  # the C library's is off by up to 2 units itself
            want = np.array([float(mpmath.erfc(float(value))) for value in x])
        got = run(jit, name, x)
        apart = distance(got, want)
        if name in ("lgamma", "digamma"):  # near their zeros the reference has no more digits than this
            apart = np.where(np.abs(got - want) < 4e-15, 0.0, apart)
        worst = int(np.argmax(apart))
        assert apart[worst] <= BAR.get(name, 4.0), f"{apart[worst]} units at {x[worst]!r}"


@pytest.mark.parametrize("name", [name for name in SERIES if FUNCTIONS[name].arity == 1])
def test_lanes_see_nothing_of_each_other(jit, name: str) -> None:
    """Large and small arguments, which take different ways, side by side."""
    x = generator().permutation(samples(name))[:512]
    assert np.array_equal(run(jit, name, x, lanes=8), run(jit, name, x), equal_nan=True)


@pytest.mark.parametrize(
    "name", ["exp", "expm1", "sinh", "cosh", "log", "log1p", "sin", "cos", "asin", "acos", "atan", "asinh", "acosh"]
)
def test_two_units_at_the_scale_of_the_result(jit, name: str) -> None:
    """What is asked of results in f64: as judged by their largest, around 1 and further out."""
    rng = generator()
    for reach in (1.0, 20.0):
        x = rng.uniform(-reach, reach, 4000)
        x = {"log": np.abs(x), "log1p": np.abs(x), "acosh": 1 + np.abs(x)}.get(name, x)
        x = x / reach if name in ("asin", "acos") else x
        want = FUNCTIONS[name].numpy(x.astype(np.longdouble))
        apart = np.abs(run(jit, name, x) - want) / np.abs(want).max()
        assert apart.max() <= 2 * np.finfo(np.float64).eps


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("acosh", (-1e300, -1e155, -1.7e308, -1.34e154, -1e10, -2.0, 0.5, -np.inf)),
        ("log", (-1e300, -2.0, -np.inf)),
        ("log1p", (-1e300, -2.0, -np.inf)),
        ("asin", (-1e300, 1.5, np.inf)),
        ("acos", (-1e300, 1.5, np.inf)),
        ("atanh", (-1e300, 1.5, np.inf)),
    ],
)
def test_nothing_is_outside_of_where_a_function_is_one(jit, name: str, outside: tuple[float, ...]) -> None:
    assert np.isnan(run(jit, name, np.array(outside))).all()


def test_powers_are_exact_however_large_their_exponents_are(jit) -> None:
    """An exponent multiplies what the logarithm has lost."""
    rng = generator()
    x = np.concatenate([rng.uniform(0.6, 1.5, 600), np.exp(rng.uniform(-700, 700, 300))])
    y = rng.uniform(-708, 708, x.size) / np.log(x)
    with mpmath.workprec(200):
        want = [mpmath.power(float(base), float(exponent)) for base, exponent in zip(x, y, strict=True)]
        apart = [
            float(abs(float(own) - exact) / np.spacing(float(exact)))
            for own, exact in zip(run(jit, "pow", x, y), want, strict=True)
        ]
    worst = int(np.argmax(apart))
    assert apart[worst] <= 1.5, f"{apart[worst]} units at {x[worst]!r}, {y[worst]!r}"


@pytest.mark.parametrize("name", ["pow", "atan2", "fmod", "remainder", "floordiv"])
def test_two_operands(jit, name: str) -> None:
    rng = generator()
    pairs = [(np.exp(rng.uniform(-30, 30, COUNT)), rng.uniform(-20, 20, COUNT))]
    pairs.append((rng.standard_normal(COUNT), rng.integers(-9, 9, COUNT).astype(float)))
    if name in ("fmod", "remainder"):
        pairs.append(tuple(np.exp(rng.uniform(-740, 700, COUNT)) for _ in range(2)))  # type: ignore[arg-type]
    pairs.append(tuple(side.ravel() for side in np.meshgrid(SPECIAL, SPECIAL)))  # type: ignore[arg-type]
    for x, y in pairs:
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name].numpy(x, y)
        got = run(jit, name, x, y)
        apart = distance(got, want)
        worst = int(np.argmax(apart))
        assert apart[worst] <= 4.0, f"{apart[worst]} units at {x[worst]!r}, {y[worst]!r}"
        zero = (got == 0) & (want == 0)
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
