"""A compiled function as users call it without a framework: arrays of any library in, arrays of its device out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol

import numpy as np

from weft.errors import DataError, GuardError, WeftError
from weft.ir.expr import Size
from weft.ir.types import DType
from weft.runtime.array_adapter import ArrayAdapter, ArrayT
from weft.runtime.launch_plan import LaunchPlan
from weft.runtime.overlap import kept_apart
from weft.runtime.owned_memory import OwnedMemory
from weft.runtime.plan_executor import WrongData
from weft.runtime.signature import Signature
from weft.runtime.strides import row_major

_MOST_KNOWN = 1024
"""Kinds of calls that are remembered."""


class ArrayExecutor(Protocol[ArrayT]):
    """What runs a program on arrays of one kind, and takes those of others for them."""

    @property
    def arrays(self) -> ArrayAdapter[ArrayT]: ...

    @property
    def fixed(self) -> Sequence[int]: ...

    def borrow(self, value: Any, written: bool) -> tuple[ArrayT, DType]: ...

    def freeze(self, given: Sequence[ArrayT]) -> None: ...

    def __call__(self, tensors: Sequence[ArrayT], symbols: Mapping[str, int]) -> list[ArrayT]: ...


class ArrayFunction(Generic[ArrayT]):
    """A compiled function. It may be called from several threads at once.

    Arguments come in the order of the function's own, or by name; those that are `constants` were given before, and
    were copied then. Arrays of other libraries are read where they lie, by DLPack. Arguments that the function replaces
    are written over if they can be, which is not so where they share memory with others: what it returns for them is
    the new state.
    """

    def __init__(
        self,
        signature: Signature,
        executor: ArrayExecutor[ArrayT],
        constants: Mapping[str, Any] | None = None,
        checks: Callable[[Mapping[str, int]], None] | None = None,
        freeze: Callable[[Sequence[ArrayT]], None] | None = None,
    ) -> None:
        """`freeze` takes the constants in the executor's place, which then are not copied: nobody reads them."""
        self._checks = checks
        """Raises where the program is not right for the sizes of a call."""
        self.signature = signature
        self.executor = executor
        places = {name: place for place, name in enumerate(signature.names)}
        taken = self._copied if freeze is None else self._taken
        self._constants = {places[name]: taken(places[name], value) for name, value in (constants or {}).items()}
        self._places = {name: place for place, name in enumerate(signature.names) if place not in self._constants}
        if self._constants:
            if missing := [signature.names[place] for place in executor.fixed if place not in self._constants]:
                raise WeftError(
                    f"{signature.name} has constants that were not given: {', '.join(missing)}",
                    hint="give all of its constants, or none: they are arguments of calls then",
                )
            signature.sizes({place: executor.arrays.shape(array) for place, array in self._constants.items()})
            (freeze or executor.freeze)([self._constants[place] for place in executor.fixed])
        shapes = {place: signature.arguments[place].shape for place in self._places.values()}
        known = all(isinstance(size, int) for shape in shapes.values() for size in shape)
        self._shapes = shapes if known and not signature.replaced else None
        """The shapes of a call's arguments by their places, where nothing is left open: constants fit already."""
        self._known: dict[Any, dict[str, int]] = {}
        """The sizes of calls that were checked, by the types and shapes of their arrays, which the program reads."""
        self._template: list[Any] = [self._constants.get(place) for place in range(len(signature.names))]

    def __call__(self, *arrays: Any, **named: Any) -> tuple[ArrayT, ...]:
        places, signature = self._places, self.signature
        key = types_and_shapes(arrays) if not named and not signature.replaced else None
        if key is not None and (symbols := self._known.get(key)) is not None:
            taken = self._template.copy()
            for place, array in zip(places.values(), arrays, strict=True):
                taken[place] = array
            return self._run(taken, symbols)
        taken, symbols = self._checked(arrays, named)
        if key is not None and all(taken[place] is array for place, array in zip(places.values(), arrays, strict=True)):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = symbols
        return self._run(taken, symbols)

    def planned(self, arrays: Sequence[Any]) -> LaunchPlan | None:
        """What is left of calls with arrays like these, with which one was just made: None where that is not little."""
        key = types_and_shapes(arrays)
        symbols = None if key is None else self._known.get(key)
        return None if symbols is None else LaunchPlan.of(self.executor, symbols)

    def _checked(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[ArrayT], dict[str, int]]:
        """All arguments as the program takes them, and the sizes that they have."""
        places, signature = self._places, self.signature
        if self._shapes is not None and not named and len(arrays) == len(self._shapes):
            return self._fitting(arrays, self._shapes), {}
        if len(arrays) + len(named) != len(places) or not set(named) <= set(list(places)[len(arrays) :]):
            raise GuardError(
                f"{signature.name} takes {', '.join(places) or 'nothing'}; got {len(arrays)} arguments by position"
                + (f" and {', '.join(named)}" if named else "")
            )
        given = dict(self._constants)
        for name, array in (*zip(places, arrays, strict=False), *named.items()):
            given[places[name]] = self._taken(places[name], array)
        taken = [given[place] for place in range(len(given))]
        symbols = signature.sizes({place: self.executor.arrays.shape(array) for place, array in enumerate(taken)})
        if symbols and self._checks is not None:
            self._checks(symbols)
        if signature.replaced:
            taken = list(kept_apart(self.executor.arrays, taken, signature.replaced))
        return taken, symbols

    def _fitting(self, arrays: Sequence[Any], shapes: Mapping[int, Sequence[Size]]) -> list[ArrayT]:
        """All arguments, of which these have to have these shapes."""
        given = dict(self._constants)
        for (place, shape), value in zip(shapes.items(), arrays, strict=True):
            given[place] = array = self._taken(place, value)
            if tuple(self.executor.arrays.shape(array)) != shape:
                self.signature.sizes({place: self.executor.arrays.shape(array)})
        return [given[place] for place in range(len(given))]

    def _run(self, taken: Sequence[ArrayT], symbols: Mapping[str, int]) -> tuple[ArrayT, ...]:
        try:
            return tuple(self.executor(taken, symbols))
        except WrongData as wrong:
            told = f"{self.signature.name} has found its data to be wrong: check number {wrong.code}"
            raise DataError(told) from None

    def _taken(self, place: int, value: Any) -> ArrayT:
        """The array of an argument, where the program can read it."""
        array, dtype = self.executor.borrow(value, place in self.signature.replaced)
        self.signature.check_type(place, dtype)
        return array

    def _copied(self, place: int, value: Any) -> ArrayT:
        """A constant as it is now, whatever happens to the array later."""
        array, arrays = self._taken(place, value), self.executor.arrays
        strides = row_major(arrays.shape(array))
        if array is value and _is_immutable(value) and tuple(arrays.strides(array)) == strides:
            return array
        # A GPU clones by itself; other strides take the way by the processor.
        return arrays.cloned(array) if tuple(arrays.strides(array)) == strides else arrays.copied(array, strides)


def types_and_shapes(arrays: Sequence[Any]) -> tuple[tuple[np.dtype, tuple[int, ...]], ...] | None:
    """What tells calls on NumPy's arrays apart, row-major ones in memory that is aligned; None where one is none."""
    return tuple([(array.dtype, array.shape) for array in arrays]) if are_plain(arrays) else None


def are_plain(arrays: Sequence[Any]) -> bool:
    """Whether all are arrays of NumPy's, row-major and aligned."""
    for array in arrays:
        if type(array) is not np.ndarray or not (array.flags.c_contiguous and array.flags.aligned):
            return False
    return True


def _is_immutable(array: object) -> bool:
    """Whether nobody writes to an array: it lies in memory as weights do that were read from a file."""
    while isinstance(array, np.ndarray):
        array = array.base  # pyright: ignore[reportUnknownMemberType]
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, bytes | OwnedMemory)
