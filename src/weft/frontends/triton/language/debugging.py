"""What an author tells and asks the compiler: hints, assertions, prints, loops with hints, and assembly."""

from __future__ import annotations

import builtins
import inspect
import string
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import (
    CompileTimeAssertionFailure,
    KernelTypeError,
    KernelValueError,
)
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import logical_or, not_
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import base_value, constexpr, unwrap
from weft.frontends.triton.language.promotion import broadcast_pair, to_tensor
from weft.frontends.triton.language.shapes import items
from weft.frontends.triton.language.values import tensor, tuple_of
from weft.frontends.triton.language.values import tuple as value_tuple


def _hint(input: Any, values: Any, name: str) -> tensor:
    # The number of an iteration is a Python number where a kernel runs as a Python function.
    input, numbers = to_tensor(input), items([values])
    for i, number in enumerate(numbers):
        if not isinstance(number, int):
            raise KernelTypeError(f"values element {i} of tl.{name} must have type `constexpr[int]`, got {number}")
    if len(numbers) != max(1, len(input.sides)):
        raise KernelValueError(f"Shape of input to {name} does not match the length of values: {input}, {numbers}")
    builder.current.get().hint(input.handle, name, numbers)
    return input


def multiple_of(input: Any, values: Any) -> tensor:
    """The author knows that the first of each run of values is divisible by a number."""
    return _hint(input, values, "multiple_of")


def max_contiguous(input: Any, values: Any) -> tensor:
    """The author knows that so many values in a row follow one another."""
    return _hint(input, values, "max_contiguous")


def max_constancy(input: Any, values: Any) -> tensor:
    """The author knows that so many values in a row are equal."""
    return _hint(input, values, "max_constancy")


def assume(cond: Any) -> None:
    """The author knows that a condition holds."""
    builder.current.get().assume(to_tensor(cond).handle)


def debug_barrier() -> None:
    """Programs are not divided into threads here: there is nothing to wait for."""


def static_print(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
    """Print while the kernel is compiled."""
    shown = (unwrap(value) for value in values)
    print(*shown, sep=unwrap(sep), end=unwrap(end), file=unwrap(file), flush=unwrap(flush))


def static_assert(cond: Any, msg: Any = "") -> None:
    """Stop the compilation if a condition does not hold."""
    condition, message = unwrap(cond), unwrap(msg)
    if isinstance(condition, tensor):
        raise KernelTypeError(
            f"tl.static_assert needs a condition known at compile time, got {condition}", hint="use tl.device_assert"
        )
    if not condition:
        raise CompileTimeAssertionFailure(str(message) if message else "a tl.static_assert does not hold")


def device_print(prefix: Any, *args: Any, hex: Any = False) -> None:
    """Print values from each program."""
    text = unwrap(prefix)
    if not isinstance(text, str):
        raise KernelTypeError(f"{text} is not string: tl.device_print begins with one")
    if not all(letter in string.printable for letter in text):
        raise KernelValueError(f"{text} is not an ascii string")
    values = [to_tensor(arg) for arg in args]
    if values:
        text = text.rstrip(" ")
        text = f"{text} " if text.endswith(":") else f"{text}: "
    if len(text) > 2 and not text.startswith(" "):
        text = f" {text}"
    stored = [value.dtype.stored for value in values]
    builder.current.get().print_values(text, [value.handle for value in values], stored, bool(unwrap(hex)))


def device_assert(cond: Any, msg: Any = "", mask: Any = None) -> None:
    """Stop the kernel with a message where a condition does not hold."""
    condition, message, chosen = to_tensor(cond), unwrap(msg), unwrap(mask)
    condition = converted(condition, types.int1, None)
    if chosen is not None:
        condition, chosen = broadcast_pair(condition, to_tensor(chosen))
        condition = logical_or(condition, not_(chosen))
    builder.current.get().check(condition.handle, str(message), author_location(), None)


def expect_zero(x: Any, mask: Any) -> Any:
    """x itself; where the mask holds the author expects zero, which is checked in kernels that run as Python."""
    value, chosen = to_tensor(x), to_tensor(mask)
    if builder.current.get().show(chosen.handle) is not None:
        device_assert(value == 0, "expect_zero expected x == 0 where mask is true", mask)
    return x


_OWN = __name__.rsplit(".", 1)[0]


def author_location() -> str:
    """The place in the author's text that calls the language."""
    if evaluated := builder.written_at.get():
        return evaluated
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith((_OWN, "weft.triton")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def inline_asm_elementwise(
    asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any, **options: Any
) -> Any:
    """PTX of single elements, on any target: it is read, and computed by the language's own operations."""
    from weft.frontends.triton.inline_ptx.elementwise import assembled

    text, places, count, given = unwrap(asm), unwrap(constraints), unwrap(pack), unwrap(dtype)
    for name, value in (("asm", text), ("constraints", places)):
        if not isinstance(value, str):
            raise KernelTypeError(f"inline_asm_elementwise takes {name} as text, got {value!r}")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise KernelValueError(f"inline_asm_elementwise takes pack as a number from 1 on, got {count!r}")
    several = isinstance(given, (builtins.tuple, list, value_tuple))
    named = cast("Sequence[Any]", given) if several else [given]
    results = [unwrap(each).scalar for each in named]
    found = assembled(text, places, [to_tensor(arg) for arg in args], results, count)
    return tuple_of(found) if several else found[0]


def extern_elementwise(
    lib_name: Any, lib_path: Any, args: Any, arg_type_symbol_dict: Any, is_pure: Any, **options: Any
) -> Any:
    """Functions of a device library, by their name there."""
    from weft.frontends.triton.libdevice.functions import by_symbol

    values = [to_tensor(arg) for arg in args]
    key = builtins.tuple(value.dtype for value in values)
    table = unwrap(arg_type_symbol_dict)
    if key not in table:
        shown = ", ".join(str(value.dtype) for value in values)
        raise KernelTypeError(f"input arg type does not match: there is no entry for ({shown})")
    symbol, result = table[key]
    return converted(by_symbol(symbol)(*values), result, None)


class static_range(base_value):
    """A loop that is unrolled at compile time."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None) -> None:
        start, stop = (0, arg1) if arg2 is None else (arg1, arg2)
        bounds = {"start": unwrap(start), "end": unwrap(stop), "step": 1 if step is None else unwrap(step)}
        for name, bound in bounds.items():
            if not isinstance(bound, int):
                raise KernelTypeError(
                    f"{bound} used as tl.static_range {name} value is not a constexpr",
                    hint="use range() or tl.range() for bounds that are known only at run time",
                )
        self.start, self.end, self.step = (constexpr(bound) for bound in bounds.values())

    def __iter__(self) -> Iterator[constexpr]:
        return map(constexpr, builtins.range(self.start.value, self.end.value, self.step.value))


class range(base_value):
    """A loop, with hints for its schedule that a CPU does not need."""

    def __init__(
        self,
        arg1: Any,
        arg2: Any = None,
        step: Any = None,
        num_stages: Any = None,
        loop_unroll_factor: Any = None,
        disallow_acc_multi_buffer: Any = False,
        flatten: Any = False,
        warp_specialize: Any = False,
        disable_licm: Any = False,
    ) -> None:
        self.start, self.end = (constexpr(0), arg1) if arg2 is None else (arg1, arg2)
        self.step = constexpr(1) if step is None else step
        self.num_stages = num_stages
        self.loop_unroll_factor = loop_unroll_factor
        self.disallow_acc_multi_buffer = disallow_acc_multi_buffer
        self.is_flattened = flatten
        self.warp_specialize = warp_specialize
        self.disable_licm = disable_licm

    def __iter__(self) -> Iterator[tensor]:
        """The turns, for a kernel that runs as a Python function."""
        bounds = [index(unwrap(bound)) for bound in (self.start, self.end, self.step)]
        return map(to_tensor, builtins.range(*bounds))


class condition(base_value):
    """The condition of a `while` loop, with hints for its schedule."""

    def __init__(self, arg1: Any, disable_licm: Any = False) -> None:
        self.condition = arg1
        self.disable_licm = disable_licm

    def __bool__(self) -> bool:
        return bool(self.condition)
