"""What the runtime asks of those whose arrays it runs on: a framework's front end, or NumPy where there is none.

The runtime works with addresses, shapes and strides. Everything that only a framework can say or make, it gets through
these: where an array lies, a new one of the framework's allocator, and calls that the framework carries out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from weft.errors import UnsupportedError
from weft.ir.types import DType

ArrayT = TypeVar("ArrayT")


class ArrayAdapter(Protocol[ArrayT]):
    """A framework's arrays on one device. Strides and offsets count elements."""

    @property
    def address(self) -> Callable[[ArrayT], int]:
        """Where the first element of an array lies; 0 if it has no memory."""
        ...

    @property
    def strides(self) -> Callable[[ArrayT], tuple[int, ...]]:
        """An array's strides."""
        ...

    @property
    def version(self) -> Callable[[ArrayT], int]:
        """How often an array was changed, as far as the framework counts that."""
        ...

    def shape(self, array: ArrayT) -> Sequence[int]:
        """An array's shape."""
        ...

    def count(self, array: ArrayT) -> int:
        """How many elements an array has."""
        ...

    def itemsize(self, array: ArrayT) -> int:
        """How many bytes an element takes."""
        ...

    def is_on_host(self, array: ArrayT) -> bool:
        """Whether an array lies in the processor's memory."""
        ...

    def dtype(self, dtype: DType) -> Any:
        """The framework's name for a type of elements."""
        ...

    def number(self, array: ArrayT) -> int:
        """What an array of one element holds."""
        ...

    def in_memory(self, array: ArrayT) -> ArrayT:
        """An array that has elements but no memory as one that has some; an error if there cannot be any."""
        ...

    def alias(self, array: ArrayT) -> ArrayT:
        """Another array on the same memory, which it keeps."""
        ...

    def cloned(self, array: ArrayT) -> ArrayT:
        """A copy in new memory."""
        ...

    def copied(self, array: ArrayT, strides: Sequence[int]) -> ArrayT:
        """A copy in new memory with these strides."""
        ...

    def view(self, array: ArrayT, shape: Sequence[int], strides: Sequence[int], offset: int) -> ArrayT:
        """An array in the memory of another, from so many elements behind its first one on."""
        ...

    def view_of_arena(
        self, arena: ArrayT, start: int, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> ArrayT:
        """The same in an array of bytes, `start` bytes behind its first."""
        ...

    def placed(self, array: ArrayT) -> ArrayT:
        """An array on the device, where kernels can read it."""
        ...

    def to_host(self, array: ArrayT) -> np.ndarray:
        """An array of NumPy's with the same elements, in the same memory where that is the processor's."""
        ...

    def from_host(self, array: np.ndarray) -> ArrayT:
        """An array on the device with the elements of one of NumPy's, in its memory where that is the processor's."""
        ...

    def multiply(self, a: ArrayT, b: ArrayT, out: ArrayT, *, accumulates: bool = False) -> None:
        """A (batched) matrix product into an array's memory, or added to what is there, by the framework's library."""
        ...


class ForeignCalls(Protocol[ArrayT]):
    """Calls that the framework which brought a graph carries out."""

    def bound(
        self, target: str, arguments: str, symbols: Mapping[str, int]
    ) -> Callable[[list[ArrayT]], Sequence[ArrayT | None]]:
        """The call that a graph names `target`, of its operands: it may change the list. A result that it does not
        have is None."""
        ...


class NoForeignCalls:
    """For graphs that no framework stands behind."""

    def bound(self, target: str, arguments: str, symbols: Mapping[str, int]) -> Callable[[list[Any]], Sequence[Any]]:
        raise UnsupportedError(
            f"{target} is a call to the framework that brought it",
            hint="export the graph with `strict`, so that every op is one of Weft's own",
        )
