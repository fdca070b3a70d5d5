"""Values of every kind go through expressions, calls and loops of a kernel, and errors keep their place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import LoweringError
from weft.frontends.triton.compiler.compile_function import framed
from weft.frontends.triton.errors import CompilationError, DeviceAssertError, KernelError, KernelTypeError

Run = Callable[..., None]


@tl.core._aggregate
class Counter:
    value: tl.tensor
    step: tl.constexpr

    def __init__(self, value, step):
        self.value = value
        self.step = step

    def advance(self, by):
        self.value = self.value + by

    @triton.jit
    def doubled(self):
        return self.value * 2 + self.step


def test_objects_of_an_authors_class_change_in_loops(run: Run):
    @triton.jit
    def kernel(out, n):
        start = 1
        counter = Counter(start, tl.constexpr(5))
        for i in range(n):
            counter.advance(i)
        tl.store(out, counter.doubled())

    out = np.zeros(1, np.int32)
    run(kernel, out, 4)
    assert out[0] == 2 * (1 + 0 + 1 + 2 + 3) + 5


def test_block_pointers_advance_in_loops(run: Run):
    @triton.jit
    def kernel(x, out, n):
        block = tl.make_block_ptr(x, (n,), (1,), (0,), (16,), (0,))
        acc = tl.zeros((16,), tl.float32)
        for _ in range(0, n, 16):
            acc += tl.load(block, boundary_check=(0,))
            block = tl.advance(block, (16,))
        tl.store(out + tl.arange(0, 16), acc)

    x = np.random.rand(48).astype(np.float32)
    out = np.zeros(16, np.float32)
    run(kernel, x, out, 48)
    np.testing.assert_allclose(out, x.reshape(3, 16).sum(0), rtol=1e-6)


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


def test_functions_are_values(run: Run):
    @triton.jit
    def kernel(x, out, combine: tl.constexpr):
        row = tl.load(x + tl.arange(0, 64))
        tl.store(out, tl.reduce(row, 0, combine))
        choose = larger
        tl.store(out + 1, choose(tl.load(x), tl.load(x + 1)))

    x = np.random.rand(64).astype(np.float32)
    out = np.zeros(2, np.float32)
    run(kernel, x, out, larger)
    assert list(out) == [x.max(), x[:2].max()]


def test_conditional_expressions(run: Run):
    @triton.jit
    def kernel(out, n, FLAG: tl.constexpr):
        a = 1 if FLAG else tl.arange(0, 3)
        b, c = (a, n) if n > 3 else (n, a)
        tl.store(out, b * 10 + c)

    out = np.zeros(1, np.int32)
    run(kernel, out, 4, True)
    assert out[0] == 14
    run(kernel, out, 2, True)
    assert out[0] == 21


def test_static_print_prints_once(run: Run, capfd: pytest.CaptureFixture[str]):
    @triton.jit
    def kernel(out, n, NAME: tl.constexpr):
        for i in range(n):
            tl.static_print("compiling", NAME)
            tl.store(out, i)

    run(kernel, np.zeros(1, np.int32), 1, f"once {run.__name__}")
    assert capfd.readouterr().out.count("compiling") == 1


def test_names_of_two_types_may_be_used_again_only_after_an_assignment(run: Run):
    @triton.jit
    def kernel(out, n):
        if n > 3:
            part = n * 2
            tl.store(out, part)
        else:
            part = n * 0.5
            tl.store(out, part.to(tl.int32))
        part = 7
        tl.store(out + 1, part)

    out = np.zeros(2, np.int32)
    run(kernel, out, 5)
    assert list(out) == [10, 7]


def test_a_failed_assertion_names_its_line():
    @triton.jit
    def kernel(x):
        value = tl.load(x)
        tl.device_assert(value > 0, "not positive")

    with pytest.raises(DeviceAssertError, match="not positive") as raised:
        kernel[(1,)](np.zeros(1, np.float32), debug=True)
    assert f"test_expressions.py:{kernel.source.line + 2}" in str(raised.value)


def test_an_error_in_a_combine_function_shows_both_lines():
    @triton.jit
    def wrong(a, b):
        return a + missing  # noqa: F821

    @triton.jit
    def kernel(x):
        row = tl.load(x + tl.arange(0, 64))
        tl.store(x, tl.reduce(row, 0, wrong))

    with pytest.raises(CompilationError, match="missing is not defined") as raised:
        kernel[(1,)](np.zeros(64, np.float32))
    lines = [frame.line for frame in raised.value.frames]
    assert lines == [wrong.source.line + 1, kernel.source.line + 2]


def test_types_of_names_are_shown():
    @triton.jit
    def kernel(x, n, SIZE: tl.constexpr):
        tile = tl.arange(0, SIZE)
        tl.store(x + tile, tile + tl.arange(0, SIZE * 2))

    with pytest.raises(CompilationError) as raised:
        kernel[(1,)](np.zeros(64, np.float32), 64, 8)
    assert raised.value.types == {"tile": "<[8], int32>", "SIZE": "constexpr[8]"}


def test_errors_can_be_sent_to_another_process():
    error = KernelTypeError("no", hint="yes")
    again: Any = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint) == (KernelTypeError, "no", "yes")


def test_what_goes_wrong_below_the_language_is_shown_at_the_kernel():
    @triton.jit
    def kernel(x):
        tl.store(x, 1.0)

    with pytest.raises(KernelError, match="no such loop") as raised, framed(kernel):
        raise LoweringError("no such loop", location=f"{__file__}:{kernel.source.line + 1}:9")
    assert raised.value.line == kernel.source.line + 1
    assert "tl.store(x, 1.0)" in str(raised.value)
    with pytest.raises(KernelError, match="division by zero") as raised, framed(kernel):
        raise ZeroDivisionError("division by zero")
    assert raised.value.line == kernel.source.line
    assert Path(raised.value.frames[0].file) == Path(__file__)


@triton.jit
def places(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    values = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    found = tl.argmin(values, AXIS, keep_dims=True) + 0 * values
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], found)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize(("m", "n", "axis"), [(32, 1, 1), (1, 32, 0), (1, 1, 0), (8, 4, 0), (8, 4, 1)])
def test_places_along_an_axis_of_any_length(run: Run, m: int, n: int, axis: int, dtype: type):
    x, out = np.random.randint(-9, 9, (m, n)).astype(dtype), np.full((m, n), -1, np.int64)
    run(places, x, out, M=m, N=n, AXIS=axis)
    np.testing.assert_array_equal(out, np.broadcast_to(x.argmin(axis, keepdims=True), (m, n)))
