"""Mistakes that authors of kernels make: each gives an error of the right type that names the right line.

The line of the mistake is marked with `# here`; it is in the kernel, or in the function that the kernel calls.
"""

# ruff: noqa: E731, F401, F821, F841, RUF059, SIM105
from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import (
    CompilationError,
    CompileTimeAssertionFailure,
    DeviceAssertError,
    KernelError,
    KernelNameError,
    KernelShapeError,
    KernelTypeError,
    KernelUnsupportedError,
    KernelValueError,
    MemoryAccessError,
    RaceError,
)
from weft.frontends.triton.runtime.jit import JITFunction

MISTAKES: list[Any] = []
CHECKED: list[Any] = []
RATE = 0.5


def mistake(kind: type[KernelError], message: str, **constants: Any) -> Callable[[Callable[..., Any]], JITFunction]:
    """Enter a kernel of (x, y, out, n) that must not compile; `message` is part of what the author is told."""

    def enter(function: Callable[..., Any]) -> JITFunction:
        kernel = triton.jit(function)
        MISTAKES.append(pytest.param(kernel, kind, message, constants, id=function.__name__))
        return kernel

    return enter


def checked(kind: type[KernelError], message: str) -> Callable[[Callable[..., Any]], JITFunction]:
    """Enter a kernel that compiles, and whose mistake is found when it is interpreted, on data of 100 elements."""

    def enter(function: Callable[..., Any]) -> JITFunction:
        kernel = triton.jit(function)
        CHECKED.append(pytest.param(kernel, kind, message, id=function.__name__))
        return kernel

    return enter


# -- shapes and types ----------------------------------------------------------------------------------------------


@mistake(KernelShapeError, "64 and 32|32 and 64")
def tiles_of_different_length(x, y, out, n):
    a = tl.load(x + tl.arange(0, 64))
    b = tl.load(y + tl.arange(0, 32))
    tl.store(out + tl.arange(0, 64), a + b)  # here


@mistake(KernelShapeError, "dot|shape")
def product_with_sides_that_do_not_meet(x, y, out, n):
    a = tl.zeros((16, 32), tl.float32)
    b = tl.zeros((16, 64), tl.float32)
    c = tl.dot(a, b)  # here


@mistake(KernelShapeError, "128|64")
def mask_of_another_shape(x, y, out, n):
    offsets = tl.arange(0, 64)
    mask = tl.arange(0, 128) < n
    a = tl.load(x + offsets, mask=mask)  # here


@mistake(KernelError, "constexpr|compile time")
def length_of_a_range_not_known(x, y, out, n):
    offsets = tl.arange(0, n)  # here
    tl.store(out + offsets, 0.0)


@mistake(KernelError, "no whole number: divide by //", BLOCK=128 / 2)
def length_of_a_range_a_float(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)  # here
    tl.store(out + offsets, 0.0)


@mistake(KernelShapeError, "no whole number: divide by //")
def shape_with_a_float(x, y, out, n):
    acc = tl.zeros((16, 64 / 2), tl.float32)  # here


@mistake(KernelShapeError, "constexpr")
def shape_not_known(x, y, out, n):
    acc = tl.zeros((16, n), tl.float32)  # here


@mistake(KernelError, "axis")
def axis_that_is_not_there(x, y, out, n):
    a = tl.load(x + tl.arange(0, 64))
    tl.store(out, tl.sum(a, axis=1))  # here


@mistake(KernelShapeError, "reshape|elements|numel")
def reshape_to_more_elements(x, y, out, n):
    a = tl.arange(0, 64)
    b = a.reshape((16, 8))  # here


@mistake(KernelTypeError, "fp32")
def bits_of_a_float(x, y, out, n):
    a = tl.load(x + tl.arange(0, 64))
    b = a & 1  # here


@mistake(KernelTypeError, "pointer")
def fraction_of_a_pointer(x, y, out, n):
    half = n / 2
    a = tl.load(x + half)  # here


@mistake(KernelTypeError, "pointer|ptr")
def load_of_a_number(x, y, out, n):
    a = tl.load(n)  # here


@mistake(KernelTypeError, "float32x|no attribute")
def type_that_does_not_exist(x, y, out, n):
    a = tl.load(x).to(tl.float32x)  # here


@mistake(KernelTypeError, "signedness")
def remainder_of_mixed_signs(x, y, out, n):
    a = n.to(tl.uint32) % n  # here


# -- names ---------------------------------------------------------------------------------------------------------


@mistake(KernelNameError, "offset is not defined")
def misspelt_name(x, y, out, n):
    offsets = tl.arange(0, 64)
    a = tl.load(x + offset)  # here


@mistake(KernelTypeError, "no attribute 'arnge'")
def misspelt_function(x, y, out, n):
    offsets = tl.arnge(0, 64)  # here


@mistake(KernelNameError, "global variable RATE")
def global_that_may_change(x, y, out, n):
    tl.store(out, tl.load(x) * RATE)  # here


@mistake(KernelNameError, "only one branch")
def name_of_one_branch(x, y, out, n):
    if n > 3:
        scale = 2.0
    tl.store(out, scale)  # here


@mistake(KernelNameError, "only inside of the loop")
def name_of_a_loop(x, y, out, n):
    for i in range(n):
        last = i
    tl.store(out, last)  # here


@mistake(KernelNameError, "cannot be reassigned")
def constant_assigned_twice(x, y, out, n, BLOCK: tl.constexpr = 64):
    BLOCK: tl.constexpr = 32  # here


@mistake(KernelValueError, "must be of type tl.constexpr")
def constant_of_an_argument(x, y, out, n):
    SIZE: tl.constexpr = n * 2
    tl.store(out + tl.arange(0, SIZE), 0.0)  # here


# -- control flow --------------------------------------------------------------------------------------------------


@mistake(KernelTypeError, "type of acc changes from int32 to fp32")
def sum_that_begins_as_an_integer(x, y, out, n):
    acc = 0
    for i in range(n):
        acc += tl.load(x + i)  # here
    tl.store(out, acc)


@mistake(KernelTypeError, "type of acc changes")
def sum_that_grows_a_side(x, y, out, n):
    acc = 0.0
    while n > 0:
        acc = acc + tl.load(x + tl.arange(0, 16))  # here
        n -= 1


@mistake(KernelTypeError, "depends on the branch taken")
def branch_that_changes_a_type(x, y, out, n):
    value = n
    if n > 3:
        value = tl.load(x)  # here
    tl.store(out, value)


@mistake(KernelTypeError, "ambiguous")
def condition_of_many_elements(x, y, out, n):
    a = tl.load(x + tl.arange(0, 64))
    if a > 0:  # here
        tl.store(out, 1.0)


@mistake(KernelUnsupportedError, "never ends")
def loop_without_end(x, y, out, n):
    while True:  # here
        n += 1


@mistake(KernelUnsupportedError, "`break`")
def leaving_a_loop(x, y, out, n):
    for i in range(n):
        if i == 3:
            break  # here


@mistake(KernelUnsupportedError, "`continue`")
def skipping_a_turn(x, y, out, n):
    for i in range(n):
        if i == 3:
            continue  # here


@mistake(KernelUnsupportedError, "return")
def returning_from_a_loop(x, y, out, n):
    for i in range(n):
        if i == 3:
            return  # here


@mistake(KernelTypeError, "cannot go over")
def loop_over_elements(x, y, out, n):
    for item in tl.arange(0, 8):  # here
        tl.store(out, item)


@mistake(KernelTypeError, "lower bound|upper bound")
def loop_to_a_fraction(x, y, out, n):
    for i in range(n / 2):  # here
        tl.store(out + i, 0.0)


@mistake(KernelTypeError, "different types")
def conditional_of_two_types(x, y, out, n):
    a = n if n > 3 else 0.5  # here


# -- calls ---------------------------------------------------------------------------------------------------------


@triton.jit
def scaled(x, factor):
    return x * factor


@mistake(KernelTypeError, "missing a required argument: 'factor'")
def too_few_arguments(x, y, out, n):
    a = scaled(tl.load(x))  # here


@mistake(KernelTypeError, "musk")
def keyword_that_is_not_there(x, y, out, n):
    a = tl.load(x, musk=n > 3)  # here


@triton.jit
def sign_of(x):
    if x > 0:
        return 1
    return -1.0  # here


@mistake(KernelTypeError, "Inconsistent return types: int32 and fp32")
def function_of_two_types(x, y, out, n):
    tl.store(out, sign_of(n))


@triton.jit
def countdown(n):
    if n > 0:
        countdown(n - 1)  # here


@mistake(KernelUnsupportedError, "recursion")
def function_that_calls_itself(x, y, out, n):
    countdown(n - 1)


def on_the_host(value):
    return value * 2


@mistake(KernelNameError, "function of the host")
def call_of_the_host(x, y, out, n):
    tl.store(out, on_the_host(n))  # here


@mistake(KernelTypeError, "runs at compile time")
def python_function_of_a_tensor(x, y, out, n):
    tl.store(out, np.sqrt(tl.load(x)))  # here


@mistake(KernelTypeError, "to 3 names|to 2 names|unpack")
def unpacking_too_much(x, y, out, n):
    a, b, c = n  # here


@mistake(CompileTimeAssertionFailure, "BLOCK must be even")
def assertion_at_compile_time(x, y, out, n, BLOCK: tl.constexpr = 33):
    tl.static_assert(BLOCK % 2 == 0, "BLOCK must be even")  # here


@mistake(KernelTypeError, "returns a value")
def kernel_with_a_result(x, y, out, n):
    return tl.load(x)  # here


# -- Python that has no meaning here -------------------------------------------------------------------------------


@mistake(KernelUnsupportedError, "`try`")
def catching_errors(x, y, out, n):
    try:  # here
        tl.store(out, 1.0)
    except ValueError:
        pass


@mistake(KernelUnsupportedError, "`with`")
def context_manager(x, y, out, n):
    with open("log") as file:  # here
        pass


@mistake(KernelUnsupportedError, "`lambda`")
def anonymous_function(x, y, out, n):
    double = lambda value: value * 2  # here


@mistake(KernelUnsupportedError, "dictionary")
def dictionary(x, y, out, n):
    options = {"scale": 2}  # here


@mistake(KernelUnsupportedError, "a set")
def set_of_values(x, y, out, n):
    chosen = {1, 2}  # here


@mistake(KernelUnsupportedError, "generator")
def generator(x, y, out, n):
    total = tuple(i for i in range(3))  # here


@mistake(KernelUnsupportedError, "function inside of a kernel")
def nested_function(x, y, out, n):
    def double(value):  # here
        return value * 2


@mistake(KernelUnsupportedError, "`global`")
def assigning_a_global(x, y, out, n):
    global RATE  # here
    RATE = 0.25


@mistake(KernelUnsupportedError, "`import`")
def importing(x, y, out, n):
    import math  # here


@mistake(KernelUnsupportedError, "assigned to")
def assigning_an_element(x, y, out, n):
    a = tl.load(x + tl.arange(0, 64))
    a[0] = 1.0  # here


@mistake(KernelUnsupportedError, "`@`")
def matrix_product_operator(x, y, out, n):
    a = tl.zeros((16, 16), tl.float32)
    b = a @ a  # here


@mistake(KernelTypeError, "f-string")
def text_of_a_tensor(x, y, out, n):
    tl.static_print(f"n is {n}")  # here


def line_of_mistake(kernel: JITFunction) -> int:
    """The line that is marked, in the kernel or in a function that it calls."""
    called = [each for each in (sign_of, countdown) if f"{each.__name__}(" in kernel.src]
    for function in [kernel, *called]:
        lines, first = inspect.getsourcelines(function.fn)
        for number, line in enumerate(lines, first):
            if "# here" in line:
                return number
    raise AssertionError("no line is marked")


def arguments() -> list[Any]:
    return [np.ones(100, np.float32), np.ones(100, np.float32), np.zeros(100, np.float32), 100]


def check(error: KernelError, kernel: JITFunction) -> None:
    """An error names the place, shows it, and says what to do."""
    text = str(error)
    assert error.line == line_of_mistake(kernel), text
    assert Path(error.frames[0].file) == Path(__file__)
    assert "# here" in text and "^" in text
    assert error.hint, text


@pytest.mark.parametrize(("kernel", "kind", "message", "constants"), MISTAKES)
def test_mistake_is_found_when_compiling(
    kernel: JITFunction, kind: type[KernelError], message: str, constants: dict[str, Any]
):
    with pytest.raises(CompilationError, match=message) as raised:
        kernel[(1,)](*arguments(), **constants)
    assert isinstance(raised.value, kind), f"{type(raised.value)}: {raised.value}"
    check(raised.value, kernel)


# -- mistakes that only data shows ---------------------------------------------------------------------------------


@checked(MemoryAccessError, "x")
def missing_mask(x, y, out, n):
    offsets = tl.program_id(0) * 64 + tl.arange(0, 64)
    a = tl.load(x + offsets)  # here
    tl.store(out + offsets, a, mask=offsets < n)


@checked(MemoryAccessError, "out")
def store_out_of_bounds(x, y, out, n):
    offsets = tl.program_id(0) * 64 + tl.arange(0, 64)
    a = tl.load(x + offsets, mask=offsets < n)
    tl.store(out + offsets * 2, a, mask=offsets < n)  # here


@checked(MemoryAccessError, "y")
def index_below_zero(x, y, out, n):
    offsets = tl.program_id(0) * 64 + tl.arange(0, 64)
    a = tl.load(y + offsets - 1, mask=offsets < n)  # here


@checked(RaceError, "out")
def programs_that_write_to_one_place(x, y, out, n):
    offsets = tl.arange(0, 64)
    tl.store(out + offsets, tl.load(x + offsets) + tl.program_id(0))  # here


@checked(DeviceAssertError, "too large")
def assertion_on_data(x, y, out, n):
    a = tl.load(x)
    tl.device_assert(a < 0.5, "too large")  # here


@pytest.mark.parametrize(("kernel", "kind", "message"), CHECKED)
def test_mistake_is_found_when_interpreting(kernel: JITFunction, kind: type[KernelError], message: str):
    with triton.interpret(), pytest.raises(kind, match=message) as raised:
        kernel[(2,)](*arguments())
    assert raised.value.line == line_of_mistake(kernel), str(raised.value)


def test_there_are_at_least_thirty():
    assert len(MISTAKES) >= 45
    assert len(CHECKED) >= 5


def test_an_error_reads_like_this():
    with pytest.raises(KernelTypeError) as raised:
        function_of_two_types[(1,)](*arguments())
    shown = str(raised.value).replace(str(Path(__file__).parent), "...")
    line, called = line_of_mistake(function_of_two_types), function_of_two_types.source.line + 1
    assert shown == (
        "Inconsistent return types: int32 and fp32\n"
        f"  at .../test_mistakes.py:{line}:5, in sign_of\n"
        "      return -1.0  # here\n"
        "      ^^^^^^^^^^^\n"
        f"  called from .../test_mistakes.py:{called}:19, in function_of_two_types\n"
        "      tl.store(out, sign_of(n))\n"
        "                    ^^^^^^^^^^\n"
        "  hint: every way through a function returns the same type: convert with .to(...), or return at the end as "
        "well"
    )
