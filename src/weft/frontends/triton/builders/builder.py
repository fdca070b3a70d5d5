"""What the language is built on: a small set of primitives, with two implementations.

    tl.* ──► semantic (types, promotion, broadcasting) ──► Builder ──┬─ emit.py       tile IR, for any target
                                                                     └─ interpret.py  NumPy, one program at a time

A handle stands for a tile or, with the shape (), for a scalar. Only the builder looks inside; the semantic layer keeps
types and shapes, has converted and broadcast operands, and passes what a primitive cannot see for itself. Pointers are
handles too: addresses, with the element type given wherever it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

from weft.ir.types import DType

Handle: TypeAlias = Any
Shape: TypeAlias = tuple[int, ...]
Combine: TypeAlias = Callable[[Sequence[Handle], Sequence[Handle]], Sequence[Handle]]
"""Joins two tuples of elements: the combine function of a reduction or a scan. Works on handles of any one shape."""


class Builder(Protocol):
    """The primitives. Operands of one call have one shape, and one type where nothing else is said."""

    # -- making values ---------------------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, dtype: DType, shape: Shape) -> Handle:
        """A tile of one number."""
        ...

    def program_id(self, axis: int) -> Handle:
        """The number of this program, an i32 scalar."""
        ...

    def num_programs(self, axis: int) -> Handle:
        """How many programs the grid has along an axis, an i32 scalar."""
        ...

    def arange(self, start: int, stop: int) -> Handle:
        """start, start + 1, ..., stop - 1, as i32."""
        ...

    # -- elementwise -----------------------------------------------------------------------------------------------

    def map(self, function: str, args: Sequence[Handle], dtype: DType) -> Handle:
        """A function of `weft.tile.functions`; `dtype` is the type of its operands (of the last two, for `select`)."""
        ...

    def cast(self, value: Handle, source: DType, target: DType, rounding: str | None = None) -> Handle:
        """Convert numbers; `rounding` is None (to nearest even) or `rtz`."""
        ...

    def bitcast(self, value: Handle, source: DType, target: DType) -> Handle:
        """The same bits as another type of the same width."""
        ...

    # -- shape -----------------------------------------------------------------------------------------------------

    def view(self, value: Handle, shape: Shape, offset: int, strides: Sequence[int]) -> Handle:
        """Element i of the result is element `offset + sum(strides * i)` of the operand, counted row by row.

        Reshapes, transposes, flips, slices and broadcasts (a stride of 0) are all views.
        """
        ...

    def take(self, value: Handle, indices: Handle, axis: int) -> Handle:
        """`numpy.take_along_axis`; the indices (i32) lie inside of the axis."""
        ...

    # -- structured ------------------------------------------------------------------------------------------------

    def reduce(
        self, values: Sequence[Handle], dtypes: Sequence[DType], axis: int, combine: Combine | str
    ) -> list[Handle]:
        """Combine along an axis, which disappears.

        A string is a name of `weft.tile.functions.COMBINERS` (argmax and argmin take one value and give the i64 index)
        or one of fmax, fmin, and, or, xor: functions of `weft.tile.functions.FUNCTIONS`.
        """
        ...

    def scan(
        self, values: Sequence[Handle], dtypes: Sequence[DType], axis: int, combine: Combine | str, reverse: bool
    ) -> list[Handle]:
        """All partial combinations along an axis, the own element included. A string is `sum` or `prod`."""
        ...

    def dot(self, a: Handle, b: Handle, accumulator: Handle | None, operand: DType, result: DType) -> Handle:
        """`a @ b` plus the accumulator; [.., M, K] and [.., K, N] of type `operand`, summed in `result`."""
        ...

    def sort(self, value: Handle, dtype: DType, descending: bool) -> Handle:
        """Sort along the last axis."""
        ...

    def histogram(self, value: Handle, dtype: DType, bins: int, mask: Handle | None) -> Handle:
        """How often each of 0 ... bins - 1 occurs in a tile of one axis, as i32."""
        ...

    # -- memory ----------------------------------------------------------------------------------------------------

    def advance(self, pointer: Handle, offset: Handle, offset_dtype: DType, element: DType) -> Handle:
        """Pointers moved on by so many elements."""
        ...

    def pointer_to_int(self, pointer: Handle, element: DType) -> Handle:
        """Addresses as i64."""
        ...

    def int_to_pointer(self, address: Handle, element: DType) -> Handle:
        """i64 addresses as pointers."""
        ...

    def select_pointer(self, condition: Handle, yes: Handle, no: Handle, element: DType) -> Handle:
        """Where the condition holds one pointer, else the other."""
        ...

    def load(self, pointer: Handle, mask: Handle | None, other: Handle | None, element: DType) -> Handle:
        """What the pointers point to; nothing is read where the mask is false: the value is `other`, if given."""
        ...

    def store(self, pointer: Handle, value: Handle, mask: Handle | None, element: DType) -> None:
        """Write to where the pointers point, if the mask holds."""
        ...

    def atomic(
        self,
        kind: str,
        pointer: Handle,
        value: Handle,
        mask: Handle | None,
        element: DType,
        expected: Handle | None = None,
        relaxed: bool = False,
    ) -> Handle:
        """Read, combine and write as one step; gives what was there. `kind`: add max min and or xor xchg cas.

        A `relaxed` one says nothing about when others see what was written before it.
        """
        ...

    # -- control flow ----------------------------------------------------------------------------------------------

    def for_loop(
        self,
        lower: Handle,
        upper: Handle,
        step: Handle,
        dtype: DType,
        carried: Sequence[Handle],
        body: Callable[[Handle, list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        """`for i in range(lower, upper, step)`: `body(i, carried)` makes one iteration and gives what is carried on.

        The bounds are scalars of an integer type, `dtype`, the step is positive; what is carried keeps its types.
        `body` may be called more than once, or never.
        """
        ...

    def while_loop(
        self,
        carried: Sequence[Handle],
        condition: Callable[[list[Handle]], Handle],
        body: Callable[[list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        """`while condition(carried): carried = body(carried)`; the condition is a boolean scalar."""
        ...

    def branch(
        self, condition: Handle, then: Callable[[], Sequence[Handle]], otherwise: Callable[[], Sequence[Handle]]
    ) -> list[Handle]:
        """What one of two blocks gives; both give handles of the same types."""
        ...

    # -- the author's eyes -----------------------------------------------------------------------------------------

    def shape_of(self, value: Handle) -> Shape:
        """The shape of a handle: a combine function is called with handles of a shape the builder chooses."""
        ...

    def known(self, value: Handle) -> float | int | bool | None:
        """A scalar as a Python number, from a builder that computes at once; None from one that emits code."""
        ...

    def show(self, value: Handle) -> str | None:
        """The numbers of a tile as text, from a builder that computes at once."""
        ...

    def print_values(self, prefix: str, values: Sequence[Handle], dtypes: Sequence[DType], hexadecimal: bool) -> None:
        """`tl.device_print`."""
        ...

    def hint(self, value: Handle, name: str, numbers: Sequence[int]) -> None:
        """The author knows of integers: `multiple_of`, `max_contiguous` or `max_constancy`, a number for each axis."""
        ...

    def assume(self, condition: Handle) -> None:
        """The author knows that a condition holds."""
        ...

    def check(self, condition: Handle, message: str, location: str, mask: Handle | None) -> None:
        """`tl.device_assert`: stop the kernel with an error where the condition is false."""
        ...

    def at(self, location: str) -> None:
        """What comes next was written at `file:line:column`."""
        ...


current: ContextVar[Builder] = ContextVar("current")
"""The builder of the kernel that is being compiled or run in this context."""

written_at: ContextVar[str] = ContextVar("written_at", default="")
"""The `file:line:column` of the author's text that is being evaluated; empty while a kernel runs as Python."""
