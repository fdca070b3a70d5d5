"""Casts between all element types, against Python's integers and NumPy's conversions."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import emit_bitcast, emit_cast, round_to
from weft.backends.llvm.values import V
from weft.errors import DTypeError
from weft.ir.types import DTYPES, DType, bf16, c64, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32

TYPES = [dtype for dtype in DTYPES.values() if dtype.kind != "complex"]
EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 448, 464, 464.1, 480, 61439, 61440, 65504, 65519, 65520, 2**-9, 2**-10]


def limits(dtype: DType) -> tuple[int, int]:
    return (
        (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << dtype.bits) - 1)
    )


def sample(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(7)
    if dtype.is_float:
        wide = rng.standard_normal(3000) * 10.0 ** rng.integers(-42, 42, 3000)
        with np.errstate(over="ignore"):
            return np.concatenate([wide, np.arange(-300, 300) / 2, EDGES]).astype(dtype.numpy)
    low, high = limits(dtype)
    values = [low, high, 0, 1, high // 2, *(low + int(v) % (high - low + 1) for v in rng.integers(0, 2**62, 500))]
    return np.array(values, np.int64 if dtype.kind == "int" else np.uint64).astype(dtype.numpy)


def expected(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    if target.kind == "bool":
        return x.astype(np.float64) != 0
    if target.is_float:
        return (x.astype(np.int64) if source.kind == "bool" else x).astype(target.numpy).astype(np.float64)
    low, high = limits(target)
    if not source.is_float:
        return np.array([(int(v) - low) % (high - low + 1) + low for v in x], object)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300)
    least, most = limits({i8: i32, i16: i32, u8: i64}.get(target, target))
    held = [min(max(int(v), least), most) for v in wide]
    return np.array([(v - low) % (high - low + 1) + low for v in held], object)


@pytest.mark.parametrize("source", TYPES, ids=str)
@pytest.mark.parametrize("lanes", [1, 8])
def test_every_pair_of_types(jit, source: DType, lanes: int) -> None:
    x = sample(source)
    for target in TYPES:
        got = jit.run(lambda b, args, t=target: emit_cast(b, args[0], source, t), [x], [source], target, lanes)
        with np.errstate(over="ignore", invalid="ignore"):
            want = expected(x, source, target)
        if target.is_float:
            got = got.astype(np.float64)
            assert np.array_equal(got, want, equal_nan=True), target
            assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any(), target
        else:
            assert [int(v) for v in got] == [int(v) for v in want], target


def test_a_double_is_rounded_only_once(jit) -> None:
    """Just above the middle of two narrow values; as a float it would be the middle, and go to the even one."""
    for target, middle in ((f16, 1 + 2**-11), (bf16, 1 + 2**-8), (f8e4m3, 1 + 2**-4), (f8e5m2, 1 + 2**-3)):
        x = np.array([middle * (1 + 2**-40), -middle * (1 + 2**-40), middle * (1 - 2**-40), middle])
        got = jit.run(lambda b, args, t=target: emit_cast(b, args[0], f64, t), [x], [f64], target, 4).astype(np.float64)
        up = 1 + 2 * (middle - 1)
        assert got.tolist() == [up, -up, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [f16, bf16, f8e4m3, f8e5m2], ids=str)
def test_rounding_keeps_every_value_of_the_type(jit, dtype: DType) -> None:
    bits = np.arange(1 << dtype.bits, dtype=np.uint32).astype(f"u{dtype.bytes}")
    values = bits.view(dtype.numpy)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = values.astype(np.float32)

    def emit(b: Function, args: list[V]) -> V:
        return round_to(b, args[0], dtype)

    got = jit.run(emit, [values], [dtype], f32, 8)
    assert np.array_equal(got, wide, equal_nan=True)
    stored = jit.run(emit, [values], [dtype], dtype, 8)
    number = ~np.isnan(got)
    assert np.array_equal(stored.view(bits.dtype)[number], bits[number])


@pytest.mark.parametrize(
    ("a", "b"), [(f32, i32), (f32, u32), (f16, i16), (bf16, u16), (f8e4m3, u8), (f8e5m2, i8)], ids=str
)
def test_bitcast_and_back(jit, a: DType, b: DType) -> None:
    bits = np.random.default_rng(3).integers(0, 1 << min(a.bits, 31), 4096).astype(b.numpy)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        bits = bits[~np.isnan(bits.view(a.numpy).astype(np.float32))]
    there = jit.run(lambda f, args: emit_bitcast(f, args[0], b, a), [bits], [b], a, 4)
    assert np.array_equal(there.view(b.numpy), bits)
    back = jit.run(lambda f, args: emit_bitcast(f, args[0], a, b), [there], [a], b, 4)
    assert np.array_equal(back, bits)


def test_refuses_what_has_no_code(jit) -> None:
    with pytest.raises(DTypeError, match="same width"):
        jit.text("skylake", lambda b, args: emit_bitcast(b, args[0], f32, i16), [f32], i16, 4)
    with pytest.raises(DTypeError, match="complex"):
        jit.text("skylake", lambda b, args: emit_cast(b, args[0], f32, c64), [f32], f32, 4)


def test_needs_no_library_on_any_machine(jit, cpu: str) -> None:
    """`__truncsfhf2` and its kind exist in no process the JIT can look into."""
    texts = {
        f"{source} to {target}, {lanes}": jit.text(
            cpu, lambda b, args, s=source, t=target: emit_cast(b, args[0], s, t), [source], target, lanes
        )
        for source in TYPES
        for target in TYPES
        for lanes in ((1, 8) if source.is_float and target.is_float else (8,))
        if source.is_float or target.is_float
    }
    assert {name: calls for name, calls in jit.calls(cpu, texts).items() if calls} == {}
