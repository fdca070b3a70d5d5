"""Statements of a kernel mean what they mean in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import KernelError

Run = Callable[..., None]


def ints(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


def test_vector_add_over_a_grid(run: Run):
    x, y = np.random.rand(100).astype(np.float32), np.random.rand(100).astype(np.float32)
    out = np.zeros(100, np.float32)
    run(add, x, y, out, 100, BLOCK=32, grid=(4,))
    np.testing.assert_array_equal(out, x + y)


def test_for_loop_carries_names(run: Run):
    @triton.jit
    def kernel(out, n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        tl.store(out, a)

    out = ints(1)
    run(kernel, out, 10)
    assert out[0] == 55


def test_for_loop_without_turns_leaves_names_alone(run: Run):
    @triton.jit
    def kernel(out, n):
        a = 7
        for i in range(n):
            a = i
        tl.store(out, a)

    out = ints(1)
    run(kernel, out, 0)
    assert out[0] == 7


@pytest.mark.parametrize("bounds", [(0, 10, 3), (10, 0, -3), (9, -1, -1), (5, 5, 1), (7, 3, 2)])
def test_loop_bounds_are_pythons(run: Run, bounds: tuple[int, int, int]):
    @triton.jit
    def kernel(out, start, stop, STEP: tl.constexpr):
        k = 0
        for i in range(start, stop, STEP):
            tl.store(out + k, i)
            k += 1  # noqa: SIM113

    out = ints(10)
    run(kernel, out, *bounds)
    wanted = list(range(*bounds))
    assert list(out[: len(wanted)]) == wanted
    assert not out[len(wanted) :].any()


def test_nested_loops_with_branches(run: Run):
    @triton.jit
    def kernel(out, n):
        total = 0
        odd = 0
        for i in range(n):
            for j in tl.range(i, n):
                if (i + j) % 2 == 1:
                    odd += 1
                else:
                    total += i * j
        tl.store(out, total)
        tl.store(out + 1, odd)

    out = ints(2)
    run(kernel, out, 6)
    pairs = [(i, j) for i in range(6) for j in range(i, 6)]
    assert out[0] == sum(i * j for i, j in pairs if (i + j) % 2 == 0)
    assert out[1] == sum((i + j) % 2 for i, j in pairs)


def test_while_loop(run: Run):
    @triton.jit
    def kernel(out, n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        tl.store(out, steps)

    out = ints(1)
    run(kernel, out, 27)
    assert out[0] == 111


def test_static_range_is_unrolled(run: Run):
    @triton.jit
    def kernel(out, N: tl.constexpr):
        for i in tl.static_range(0, N, 2):
            x: tl.constexpr = i * 10
            tl.static_assert(x % 10 == 0)
            tl.store(out + i, x)

    out = ints(5)
    with pytest.raises(KernelError, match="x is already defined"):
        run(kernel, out, 5)


def test_branches_on_known_values_are_not_both_evaluated(run: Run):
    @triton.jit
    def kernel(out, FLAG: tl.constexpr, nothing):
        if FLAG:
            value = 1
        elif nothing is None:
            value = tl.arange(0, 4)
        else:
            tl.static_assert(False)
        tl.store(out + tl.arange(0, 4), value)

    out = ints(4)
    run(kernel, out, True, None)
    assert list(out) == [1] * 4
    run(kernel, out, False, None)
    assert list(out) == [0, 1, 2, 3]


def test_elif_chain(run: Run):
    @triton.jit
    def kernel(out):
        i = tl.program_id(0)
        if i == 0:
            value = 10
        elif i == 1:
            value = 20
        elif i < 4:
            value = 30
        else:
            value = 40
        tl.store(out + i, value)

    out = ints(5)
    run(kernel, out, grid=(5,))
    assert list(out) == [10, 20, 30, 30, 40]


@triton.jit
def clipped(x, low):
    if x < low:
        return low
    if x > 10:
        if x > 20:
            return x * 0 + 20
        x -= 1
    return x


def test_early_return(run: Run):
    @triton.jit
    def kernel(out):
        i = tl.program_id(0)
        if i == 3:
            return
        tl.store(out + i, clipped(i * 4, 5))

    out = ints(8)
    run(kernel, out, grid=(8,))
    assert list(out) == [5, 5, 8, 0, 15, 19, 20, 20]


def test_return_in_an_unrolled_loop(run: Run):
    @triton.jit
    def first_above(x, limit, N: tl.constexpr):
        for i in tl.static_range(N):
            if x * i > limit:
                return x * i
        return x * 0 - 1

    @triton.jit
    def kernel(out, x, limit):
        tl.store(out, first_above(x, limit, 5))

    out = ints(1)
    run(kernel, out, 7, 15)
    assert out[0] == 21
    run(kernel, out, 7, 100)
    assert out[0] == -1


class Pair(NamedTuple):
    first: Any
    second: Any


@triton.jit
def swapped(pair):
    return Pair(pair.second, pair.first)


def test_tuples_and_named_tuples_go_through_loops_and_functions(run: Run):
    @triton.jit
    def kernel(out, n):
        pair = Pair(first=1, second=2)
        items = (1, 2, 3)
        for _ in range(n):
            pair = swapped(pair)
            items = (items[1], items[2], items[0])
        tl.store(out, pair.first * 10 + pair.second)
        _a, *_rest = 1, 2

    @triton.jit
    def good(out, n):
        pair = Pair(first=1, second=2)
        items = (1, 2, 3)
        for _ in range(n):
            pair = swapped(pair)
            items = (items[1], items[2], items[0])
        tl.store(out, pair.first * 10 + pair.second)
        total = 0
        for item in [each * 2 for each in items]:
            total = total * 10 + item
        tl.store(out + 1, total)

    out = ints(2)
    run(good, out, 4)
    assert list(out) == [12, 462]
    with pytest.raises(KernelError, match="Starred"):
        run(kernel, out, 4)


@triton.jit
def scaled(x, by=3, *, offset: tl.constexpr = 1):
    return x * by + offset


@triton.jit
def total_of(*values):
    total = values[0]
    for i in tl.static_range(1, len(values)):
        total += values[i]
    return total


def test_calls_with_defaults_keywords_and_any_number_of_arguments(run: Run):
    @triton.jit
    def kernel(out, x):
        tl.store(out, scaled(x))
        tl.store(out + 1, scaled(x, offset=5, by=x))
        tl.store(out + 2, total_of(x, 2, *(3, 4)))

    out = ints(3)
    run(kernel, out, 10)
    assert list(out) == [31, 105, 19]


@triton.jit
def power(x, N: tl.constexpr):
    if N == 0:
        return x * 0 + 1
    else:
        return x * power(x, N - 1)


def test_recursion_that_ends_at_compile_time(run: Run):
    @triton.jit
    def kernel(out, x):
        tl.store(out, power(x, 5))

    out = ints(1)
    run(kernel, out, 3)
    assert out[0] == 243


@triton.constexpr_function
def next_even(n):
    return n + n % 2


WIDTH = tl.constexpr(3)


def test_what_is_known_at_compile_time(run: Run):
    @triton.jit
    def kernel(out, N: tl.constexpr):
        SIZE: tl.constexpr = next_even(N) + 2 * WIDTH
        tl.static_assert(SIZE == 12, f"size {SIZE} of {N=}")
        tl.static_assert(0 < N <= 5 and N not in (1, 2) and not (N >= 6))
        tl.store(out + tl.arange(0, SIZE), tl.arange(0, SIZE), mask=tl.arange(0, SIZE) < min(N, 7))

    out = ints(12)
    run(kernel, out, 5)
    assert list(out) == [0, 1, 2, 3, 4] + [0] * 7


def test_chained_comparisons_and_boolean_operators_on_tensors(run: Run):
    @triton.jit
    def kernel(out, low, high):
        i = tl.arange(0, 8)
        inside = (low <= i) & (i < high)
        chained = low <= i < high
        tl.store(out + i, (inside == chained) and not (i > 6))

    out = ints(8)
    run(kernel, out, 2, 5)
    assert list(out) == [1] * 7 + [0]


def test_assert_and_print_and_breakpoint_do_no_harm(run: Run, capfd: pytest.CaptureFixture[str]):
    @triton.jit
    def kernel(out, x):
        """A text at the beginning."""
        assert x > 0, f"{WIDTH} must be positive"
        breakpoint()
        print("x", x)
        tl.store(out, x)

    out = ints(1)
    run(kernel, out, 3)
    assert out[0] == 3
    with pytest.raises(KernelError, match="3 must be positive"):
        run(kernel, out, -3)


@triton.jit
def count(out, first, last, step):
    turns = 0
    total = 0
    for i in range(first, last, step):
        turns += 1
        total = total * 3 + i
    tl.store(out, turns)
    tl.store(out + 1, total)


@pytest.mark.parametrize(
    ("first", "last", "step"), [(10, 0, -3), (0, 10, 3), (0, 10, -3), (5, 5, 2), (20, 3, -16), (0, 40, 16)]
)
def test_a_step_that_is_not_known_may_be_negative(first: int, last: int, step: int) -> None:
    out = ints(2)
    count[(1,)](out, first, last, step)
    total = 0
    for i in range(first, last, step):
        total = total * 3 + i
    assert out.tolist() == [len(range(first, last, step)), total]
