"""Division of integers in vectors, beside Python's: small numbers go by another way than large ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import DType, Tensor, i32, i64
from weft.testing.kernels import CpuModule, Trial, group_of

LIMITS = {i32: (-(2**31), 2**31 - 1), i64: (-(2**63), 2**63 - 1)}
SMALL = [0, 1, -1, 2, -3, 7, 500, -499, 2**30 - 1, -(2**30)]
LARGE = [2**30, 2**31 - 1, -(2**31)]


def numbers(dtype: DType, count: int, *, large: bool) -> np.ndarray:
    rng = np.random.default_rng(count)
    low, high = LIMITS[dtype] if large else (-(2**30), 2**30)
    drawn = rng.integers(low, high, count, dtype=np.int64) >> rng.integers(0, 40, count)
    edges = [*SMALL, *(LARGE if large else []), *((low, high, low + 1) if large else ())]
    drawn[: len(edges)] = edges
    return rng.permutation(drawn).astype(dtype.numpy)


def exact(name: str, x: int, y: int, dtype: DType) -> int:
    """By zero it is 0; what is too large wraps around."""
    whole = 0 if y == 0 else x // y
    if name == "truncdiv" and y != 0 and whole < 0 and whole * y != x:
        whole += 1
    return wrapped(whole, dtype)


def wrapped(number: int, dtype: DType) -> int:
    half = 1 << dtype.bits - 1
    return (number + half) % (2 * half) - half


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", [i32, i64])
@pytest.mark.parametrize("name", ["floordiv", "truncdiv"])
def test_quotients_are_exact(name: str, dtype: DType, large: bool) -> None:
    count = 531
    x, y = numbers(dtype, count, large=large), np.roll(numbers(dtype, count, large=large), 7)
    trial = Trial.of(group_of([Tensor(dtype, (count,))] * 2, lambda b, p, q: getattr(b, name)(p, q)), "quotient")
    (got,) = CpuModule([trial]).run(trial, [x, y])
    expected = [exact(name, p, q, dtype) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_array_equal(got, np.array(expected, dtype.numpy))


@pytest.mark.parametrize("divisor", [1, -1, 3, 7, -500, 2**20, 2**40])
@pytest.mark.parametrize("large", [False, True])
def test_by_a_constant(divisor: int, large: bool) -> None:
    x = numbers(i64, 300, large=large)

    def divided(b: Any, p: Any) -> Any:
        by = b.full(value=divisor, shape=(), dtype=i64)
        return b.add(b.floordiv(p, by), b.remainder(p, by))

    trial = Trial.of(group_of([Tensor(i64, (300,))], divided), "quotient")
    (got,) = CpuModule([trial]).run(trial, [x])
    np.testing.assert_array_equal(got, np.array([wrapped(p // divisor + p % divisor, i64) for p in x.tolist()]))
