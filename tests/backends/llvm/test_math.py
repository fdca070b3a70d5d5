"""The accuracy of the elementwise functions against float64, their special cases, and what they compile to."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.seeds import generator
from weft.backends.llvm.builder import Function
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V
from weft.errors import DTypeError
from weft.ir.types import DType, bf16, boolean, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, i64, u8, u32
from weft.tile.functions import FUNCTIONS
from weft.tile.functions import Function as Elementwise

HOT = ("exp", "exp2", "log", "log2", "tanh", "erf", "sin", "cos", "sigmoid", "sqrt", "rsqrt")
RARE = (
    *("expm1", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("erfc", "erfinv", "lgamma", "digamma"),
)
SLOW_REFERENCE = ("erf", "erfc", "erfinv", "lgamma", "digamma")
NOT_HERE = ("select", "cast", "bitcast")  # tested by themselves
FLUSHING = ("exp", "exp2", "sigmoid")
MIN_NORMAL = np.finfo(np.float32).tiny
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e-45, -1e-45, MIN_NORMAL, 3.4e38])
FINITE_PAIRS = np.array([1.0, -1.0, 2.0, 0.5, -0.5, 3.0, -3.0, 7.5, -7.5, 1e-45, -1e-40, 1e10, 3.4e38, 16777215.0, 2.5])
PAIRS = np.concatenate([SPECIAL, FINITE_PAIRS]).astype(np.float32)


def run(jit, name: str, arrays: list[np.ndarray], dtype: DType, lanes: int = 4) -> np.ndarray:
    result = boolean if FUNCTIONS[name].result == "bool" else dtype
    return jit.run(lambda b, args: emit_function(b, name, args, dtype), arrays, [dtype] * len(arrays), result, lanes)


def takes(function: Elementwise, dtype: DType) -> bool:
    try:
        function.result_dtype(*[dtype] * function.arity)
    except DTypeError:
        return False
    return True


def reference(name: str, *arrays: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return FUNCTIONS[name].numpy(*(array.astype(np.float64) for array in arrays))


def ulps(got: np.ndarray, want: np.ndarray, flush: bool = False) -> np.ndarray:
    """The distance in units of the last place of the wanted result; infinite where only one is NaN or infinite."""
    kind = got.dtype
    with np.errstate(all="ignore"):
        rounded = want.astype(kind)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(kind).max)).astype(want.dtype)
        distance = np.abs(got.astype(want.dtype) - want) / unit
        same = (got == rounded) & ~np.isfinite(rounded) | np.isnan(got) & np.isnan(rounded)
        if flush:
            same |= (np.abs(want) < MIN_NORMAL) & (np.abs(got) <= MIN_NORMAL)
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def assert_within(got: np.ndarray, want: np.ndarray, bar: float, *arrays: np.ndarray, flush: bool = False) -> None:
    distance = ulps(got, want, flush)
    worst = int(np.argmax(distance))
    at = [array.ravel()[worst] for array in arrays]
    assert distance[worst] <= bar, f"{distance[worst]} ulp at {at}: {got[worst]!r}, should be {want[worst]!r}"


def floats(stride: int) -> np.ndarray:
    """Floats from all over the range, every bit pattern equally likely."""
    start = int(generator().integers(stride))
    bits = np.arange(start, 1 << 32, stride, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), SPECIAL.astype(np.float32)])


@pytest.mark.parametrize("name", [*HOT, *RARE])
def test_accuracy_in_f32(jit, name: str) -> None:
    x = floats(99_991 if name in SLOW_REFERENCE else 9_973)
    if name in SLOW_REFERENCE:
        x = np.concatenate([x, generator().uniform(-6, 6, 20_000).astype(np.float32)])
    want = reference(name, x)
    for lanes in (1, 4, 8):
        got = run(jit, name, [x], f32, lanes)
        assert_within(got, want, 2.0 if name in HOT else 4.0, x, flush=name in FLUSHING)
        zero = (x == 0) & (want == 0)
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_arguments_around_the_change_of_reduction(jit, name: str) -> None:
    around = np.float32(2.0**18).view(np.int32)
    x = np.arange(around - 60_000, around + 60_000, dtype=np.int32).view(np.float32)
    multiples = (np.arange(1, 80_000) * (math.pi / 2)).astype(np.float32)
    for argument in (x, multiples, -multiples):
        bar = 4.0 if name == "tan" else 2.0
        assert_within(run(jit, name, [argument], f32), reference(name, argument), bar, argument)


def power_samples() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = generator()
    count = 200_000
    wide = np.exp(rng.uniform(-88, 88, count)).astype(np.float32)
    near_one = (1 + rng.standard_normal(count) * 1e-4).astype(np.float32)
    fitting = [
        (rng.uniform(-150, 130, count) / np.log2(x.astype(float) + 1e-12)).astype(np.float32) for x in (wide, near_one)
    ]
    integers = rng.integers(-100, 100, count).astype(np.float32), rng.integers(-20, 20, count).astype(np.float32)
    anything = [rng.integers(0, 1 << 32, count).astype(np.uint32).view(np.float32) for _ in range(2)]
    return [(wide, fitting[0]), (near_one, fitting[1]), integers, (anything[0], anything[1])]


@pytest.mark.parametrize("lanes", [1, 8])
def test_accuracy_of_powers_in_f32(jit, lanes: int) -> None:
    for x, y in power_samples():
        assert_within(run(jit, "pow", [x, y], f32, lanes), reference("pow", x, y), 1.0, x, y)


@pytest.mark.parametrize(
    "name", ["pow", "atan2", "fmod", "remainder", "max", "min", "fmax", "fmin", "copysign", "truncdiv"]
)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_special_cases_of_two_operands(jit, name: str, dtype: DType) -> None:
    x, y = (grid.ravel().astype(dtype.numpy) for grid in np.meshgrid(PAIRS, PAIRS))
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name].numpy(x, y).astype(np.float64)
    if name in ("pow", "atan2") and dtype == f32:
        want = reference(name, x, y)
    got = run(jit, name, [x, y], dtype)
    assert_within(got, want, {"pow": 1.0, "atan2": 4.0}.get(name, 0.0), x, y)
    signed = ~np.isnan(want) & (name not in ("max", "min", "fmax", "fmin"))  # of 0 and -0 either will do
    assert np.array_equal(np.signbit(got[signed]), np.signbit(want[signed]))


def test_remainders_are_exact_however_large_the_quotient(jit) -> None:
    rng = generator()
    x, y = (rng.integers(0, 1 << 32, 100_000).astype(np.uint32).view(np.float32) for _ in range(2))
    with np.errstate(invalid="ignore"):
        want = np.fmod(x, y)
    assert np.array_equal(run(jit, "fmod", [x, y], f32, 8), want, equal_nan=True)


def test_floor_division_is_of_the_true_quotient(jit) -> None:
    x = np.array([1.0, -1.0, 7.0, -7.0, 0.3, -0.3, np.inf, 1.0, 0.0, 5.0], np.float32)
    y = np.array([0.1, 0.1, 2.0, 2.0, np.inf, np.inf, 2.0, 0.0, 0.0, -5.0], np.float32)
    want = [9.0, -10.0, 3.0, -4.0, 0.0, -1.0, np.nan, np.inf, np.nan, -1.0]  # 0.1 in f32 is more than a tenth
    for dtype in (f32, f64):
        got = run(jit, "floordiv", [x.astype(dtype.numpy), y.astype(dtype.numpy)], dtype, 2)
        np.testing.assert_array_equal(got, want)


def test_floor_division_of_doubles_is_exact_up_to_the_last_integer(jit) -> None:
    """Where the difference of a dividend and its rest is no double, too."""
    rng = generator()
    whole, sign = rng.integers(1 << 49, 1 << 53, 4000), rng.choice([-1.0, 1.0], (2, 4000))
    y = rng.uniform(0.5, 2.5, 4000) * sign[0]
    x = whole * y * sign[1]
    want = [Fraction(a) // Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    near = np.array([abs(each) <= 1 << 53 for each in want])
    got = run(jit, "floordiv", [x, y], f64, 4)
    np.testing.assert_array_equal(got[near], np.array(want, np.float64)[near])


EXACT = (
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "abs",
    "floor",
    "ceil",
    "trunc",
    "round",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
)


@pytest.mark.parametrize("name", [*EXACT, "isnan", "isinf", "nextafter"])
@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
def test_arithmetic_is_exactly_rounded(jit, name: str, dtype: DType) -> None:
    with np.errstate(all="ignore"):
        arrays = [grid.ravel().astype(dtype.numpy) for grid in np.meshgrid(PAIRS, PAIRS)]
        arrays = arrays[: FUNCTIONS[name].arity]
        want = FUNCTIONS[name].numpy(*arrays)
    got = run(jit, name, arrays, dtype)
    assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)


def long_digamma(x: np.ndarray) -> np.ndarray:
    """By recurrence and the asymptotic series, in extended precision; for positive x."""
    z, shift = x.astype(np.longdouble), np.zeros(x.shape, np.longdouble)
    for _ in range(40):
        near = z < 40
        shift, z = shift - np.where(near, 1 / z, 0), z + near
    square = 1 / (z * z)
    series = square * (1 / np.longdouble(12) - square * (1 / np.longdouble(120) - square * (1 / np.longdouble(252))))
    return np.log(z) - 1 / (2 * z) - (series - square**4 / 240) + shift


@pytest.mark.parametrize("name", [n for n in (*HOT, *RARE) if n not in SLOW_REFERENCE])
def test_accuracy_in_f64(jit, name: str) -> None:
    rng = generator()
    x = np.concatenate(
        [rng.standard_normal(5000) * 10.0 ** rng.integers(-8, 3, 5000), rng.uniform(-1, 1, 5000), SPECIAL]
    )
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name].numpy(x.astype(np.longdouble))
    assert_within(run(jit, name, [x], f64), want, 4.0, x)


def test_accuracy_of_the_rare_functions_in_f64(jit) -> None:
    rng = generator()
    x = np.concatenate([rng.uniform(1e-3, 30, 4000), 10.0 ** rng.uniform(-5, 5, 1000)])
    got, want = run(jit, "digamma", [x], f64), long_digamma(x)
    # Near its zero at 1.46 the terms cancel, so the unit is that of the terms.
    assert np.all(np.abs(got - want) <= 4 * np.spacing(np.maximum(np.abs(got), 1.0)))
    probability = np.concatenate([rng.uniform(-1, 1, 2000), 1 - 10.0 ** rng.uniform(-15, -1, 500), [0.0, 1e-30]])
    quantile = run(jit, "erfinv", [probability], f64)
    for p, q in zip(probability.tolist(), quantile.tolist(), strict=True):
        slope = 2 / math.sqrt(math.pi) * math.exp(-q * q)
        error, unit = (math.erf(q) - p, p) if abs(p) < 0.5 else (math.erfc(abs(q)) - (1 - abs(p)), 1 - abs(p))
        assert abs(error) <= 4 * slope * math.ulp(q) + math.ulp(unit)
    for name in ("erf", "erfc"):
        assert_within(run(jit, name, [x], f64), FUNCTIONS[name].numpy(x), 4.0, x)
    integers = np.arange(2, 160)
    factorials = np.cumsum(np.log(integers.astype(np.longdouble)))
    assert_within(run(jit, "lgamma", [integers + 1.0], f64), factorials, 4.0, integers)


@pytest.mark.parametrize("dtype", [i8, u8, i32, u32, i64], ids=str)
@pytest.mark.parametrize("name", sorted(f.name for f in FUNCTIONS.values() if takes(f, i32) and f.name not in NOT_HERE))
def test_integers(jit, name: str, dtype: DType) -> None:
    """Divisions by zero and of the least integer by -1 would trap on x86; they are among these."""
    info, rng = np.iinfo(dtype.numpy), generator()
    edges = np.array([info.min, info.max, info.min + 1, 0, 1, 2, 3, 7, info.max // 2], dtype.numpy)
    values = np.concatenate([edges, -edges[3:], rng.integers(0, 64, 30).astype(dtype.numpy)])
    arrays = [grid.ravel() for grid in np.meshgrid(values, values)][: FUNCTIONS[name].arity]
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name].numpy(*arrays)
    defined = np.ones(want.shape, bool)
    if name in ("floordiv", "truncdiv", "remainder", "fmod"):
        defined = arrays[1] != 0
    for lanes in (1, 8):
        got = run(jit, name, arrays, dtype, lanes)
        assert np.array_equal(got[defined], want[defined])
        assert not np.any(got[~defined])


@pytest.mark.parametrize(
    "name", ["and", "or", "xor", "not", "max", "min", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge"]
)
def test_booleans(jit, name: str) -> None:
    arrays = [np.array([False, False, True, True]), np.array([False, True, False, True])][: FUNCTIONS[name].arity]
    assert np.array_equal(run(jit, name, arrays, boolean), FUNCTIONS[name].numpy(*arrays))


def test_select(jit) -> None:
    x = np.arange(-8, 8, dtype=np.float32)

    def emit(b: Function, args: list[V]) -> V:
        condition = emit_function(b, "gt", args, f32)
        return emit_function(b, "select", [condition, *args], f32)

    assert np.array_equal(jit.run(emit, [x, -x], [f32, f32], f32, 8), np.abs(x))


@pytest.mark.parametrize("dtype", [bf16, f8e4m3, f8e5m2], ids=str)
def test_neighbours_of_narrow_floats(jit, dtype: DType) -> None:
    bits = np.arange(0, 1 << dtype.bits, 1 if dtype.bits == 8 else 97).astype(f"u{dtype.bytes}")
    x = bits.view(dtype.numpy)
    for direction in (np.inf, -np.inf, 0.0, 1.0):
        y = np.full(x.shape, direction, np.float32).astype(dtype.numpy)
        with np.errstate(invalid="ignore"):
            want = np.nextafter(x, y)
        got = run(jit, "nextafter", [x, y], dtype, 8)
        assert np.array_equal(got.astype(np.float32), want.astype(np.float32), equal_nan=True)


def test_refuses_what_has_no_code(jit) -> None:
    with pytest.raises(DTypeError, match="exp on i32"):
        jit.text("skylake", lambda b, args: emit_function(b, "exp", args, i32), [i32], i32, 4)


def test_every_function_compiles_on_every_machine(jit, cpu: str) -> None:
    """All but a few functions are vector code without calls; in f64 where there are fused multiply-adds."""
    texts: dict[str, str] = {}
    for function, dtype in itertools.product(FUNCTIONS.values(), (f32, f64, bf16, f16, i32, u8, boolean)):
        if function.name in NOT_HERE or not takes(function, dtype):
            continue
        for lanes in (1, 8) if dtype in (f32, bf16, f16) else (8,):
            texts[f"{function.name} {dtype} {lanes}"] = jit.text(
                cpu,
                lambda b, args, name=function.name, d=dtype: emit_function(b, name, args, d),
                [dtype] * function.arity,
                boolean if function.result == "bool" else dtype,
                lanes,
            )
    calling = {name for name, calls in jit.calls(cpu, texts).items() if calls}
    assert {name for name in calling if " f64" not in name} == {
        f"{name} {dtype} {lanes}" for name in ("lgamma", "digamma") for dtype in (f32, bf16, f16) for lanes in (1, 8)
    }
    if cpu != "x86-64-v2":
        assert {name.split()[0] for name in calling if " f64" in name} == {
            *("tan", "erfc", "lgamma", "digamma", "fmod", "remainder", "floordiv")
        }
