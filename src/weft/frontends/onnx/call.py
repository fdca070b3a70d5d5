"""A call of an operator as its converter sees it: inputs as graph values or arrays, and attributes with their types."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DataError, DTypeError, ModelError, PlaceError, ShapeError, UnsupportedError, WeftError
from weft.frontends.onnx.dtypes import NUMPY, kernel_dtype
from weft.frontends.onnx.model import Graph, Node, Reference
from weft.frontends.onnx.values import Absent, Items, Known, Slot, Traced, Value
from weft.ir.types import DType, Tensor
from weft.ops.graph import GraphBuilder

HostFunction = Callable[..., Any]
"""A function of arrays that runs between compiled parts; it gives an array, or a tuple of them."""


@dataclass(frozen=True)
class Mistake:
    """What is wrong with data where a check finds something."""

    message: str
    is_place: bool = False
    """Whether it is an index that is out of range."""

    @property
    def kind(self) -> str:
        return "place" if self.is_place else "data"

    def error(self) -> WeftError:
        if self.is_place:
            return PlaceError(self.message, hint="indices go from -size to size - 1")
        return DataError(self.message)


class NoRegion(Exception):
    """A body cannot be a region: its turns are not alike, or something has to be looked at in between."""


class Scope(Protocol):
    """What a call needs of the importer."""

    builder: GraphBuilder
    repeatable: bool
    whole: bool
    """Whether the program is to be one graph: `If` is a branch outside of loops, too."""
    checks: list[tuple[SSAValue, Mistake]]
    """Conditions that must not hold, and what is wrong where they do."""
    tables: list[np.ndarray]
    """Arrays that were made of attributes alone: another import makes the same ones."""

    def traced(self, value: Value, node: Node) -> SSAValue: ...

    def known(self, value: Value, node: Node) -> np.ndarray: ...

    def host(self, node: Node, function: HostFunction, values: Sequence[Value], count: int) -> tuple[Value, ...]: ...

    def fresh(self, name: str, /) -> str: ...

    def check_room(self) -> None: ...

    @property
    def in_region(self) -> bool: ...

    def within(
        self, builder: GraphBuilder, nodes: Sequence[Node], values: Mapping[str, Value]
    ) -> AbstractContextManager[Mapping[str, Value]]:
        """Import nodes into a region, and go on there; `NoRegion` where they cannot be one."""
        ...


class Call:
    """One node: `c.x(0)` is its first input as a graph value, `c.known(1)` the elements of its second.

    An input whose elements are asked for and not known ends the stage: they are computed first, and the importer goes
    on with them at hand.
    """

    def __init__(self, scope: Scope, node: Node, inputs: Sequence[Value], version: int) -> None:
        self.scope = scope
        self.node = node
        self.inputs = tuple(inputs)
        self.version = version
        self.b = scope.builder

    def has(self, place: int) -> bool:
        """Whether an optional input is given."""
        return place < len(self.inputs) and not isinstance(self.inputs[place], Absent)

    def input(self, place: int) -> Value:
        if not self.has(place):
            raise ModelError(f"{self.node} has {len(self.inputs)} inputs, expected one at place {place}")
        return self.inputs[place]

    def x(self, place: int) -> SSAValue:
        """An input as a value of the graph."""
        return self.scope.traced(self.input(place), self.node)

    def optional(self, place: int) -> SSAValue | None:
        return self.x(place) if self.has(place) else None

    def xs(self) -> list[SSAValue]:
        return [self.x(place) for place in range(len(self.inputs))]

    def known(self, place: int) -> np.ndarray:
        """The elements of an input."""
        return self.scope.known(self.input(place), self.node)

    def known_ints(self, place: int) -> tuple[int, ...]:
        """The elements of a small input of integers."""
        array = self.known(place)
        if array.dtype.kind not in "iub" or array.size > 1 << 16:
            raise DTypeError(f"{self.node}: input {place} is {array.dtype}{list(array.shape)}, expected a few integers")
        return tuple(int(each) for each in array.reshape(-1))

    def known_scalar(self, place: int) -> Any:
        array = self.known(place)
        if array.size != 1:
            raise ShapeError(f"{self.node}: input {place} has the shape {list(array.shape)}, expected one element")
        return array.reshape(()).item()

    def sequence(self, place: int) -> Items:
        value = self.input(place)
        if not isinstance(value, Items):
            raise DTypeError(f"{self.node}: input {place} is a tensor, expected a sequence")
        return value

    def dtype(self, place: int) -> np.dtype:
        """The element type of an input, also of one that only the host knows."""
        value = self.input(place)
        match value:
            case Known(array):
                return array.dtype
            case Slot():
                return value.dtype
            case Traced(ssa):
                return self.b.tensor(ssa).dtype.numpy
            case _:
                raise DTypeError(f"{self.node}: input {place} is a sequence, expected a tensor")

    def shape(self, place: int) -> tuple[int, ...]:
        value = self.input(place)
        match value:
            case Known(array):
                return array.shape
            case Slot():
                return value.shape
            case Traced(ssa):
                return static(self.b.tensor(ssa))
            case _:
                raise ShapeError(f"{self.node}: input {place} is a sequence, expected a tensor")

    def rank(self, place: int) -> int:
        return len(self.shape(place))

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """A dimension, counted from the front."""
        if not -rank <= value < max(rank, 1):
            raise ShapeError(f"{self.node}: {what} is {value}, expected one of {rank} dimensions")
        return value % rank if rank else 0

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        found = tuple(self.axis(value, rank, "axes") for value in values)
        if len(set(found)) != len(found):
            raise ShapeError(f"{self.node}: axes are {list(values)}, expected different ones")
        return found

    def table(self, array: np.ndarray) -> SSAValue:
        """An array that attributes alone decide, as a value of the graph."""
        self.scope.tables.append(array)
        return self.scope.traced(Known(array), self.node)

    def host(self, function: HostFunction, values: Sequence[Value] | None = None, count: int | None = None) -> Any:
        """Results that NumPy computes between compiled parts; at once where all elements are known."""
        made = len(self.node.outputs) if count is None else count
        return self.scope.host(self.node, function, self.inputs if values is None else values, made)

    def _attribute(self, name: str, default: Any, types: tuple[type, ...], expected: str) -> Any:
        value = self.node.attributes.get(name)
        if value is None or isinstance(value, Reference):
            if default is _REQUIRED:
                raise ModelError(f"{self.node}: attribute {name!r} is missing, expected {expected}")
            return default
        items = value if isinstance(value, tuple) and tuple not in types else (value,)
        if isinstance(value, tuple) != expected.endswith("s") or not all(isinstance(each, types) for each in items):
            raise ModelError(f"{self.node}: attribute {name!r} is {str(value)[:80]}, expected {expected}")
        return value

    def int(self, name: str, default: Any = None) -> int:
        return self._attribute(name, _REQUIRED if default is None else default, (int,), "an integer")

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self._attribute(name, default, (int,), "an integer"))

    def float(self, name: str, default: float | None = None) -> float:
        return self._attribute(name, _REQUIRED if default is None else default, (float, int), "a number")

    def string(self, name: str, default: str | None = None) -> str:
        value = self._attribute(name, _REQUIRED if default is None else default, (bytes, str), "a string")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        return tuple(self._attribute(name, _REQUIRED if default is None else default, (int,), "integers"))

    def floats(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        return tuple(self._attribute(name, _REQUIRED if default is None else default, (float, int), "numbers"))

    def strings(self, name: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        found = self._attribute(name, _REQUIRED if default is None else default, (bytes, str), "strings")
        return tuple(each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in found)

    def array(self, name: str) -> np.ndarray:
        return self._attribute(name, _REQUIRED, (np.ndarray,), "a tensor")

    def graph(self, name: str) -> Graph:
        return self._attribute(name, _REQUIRED, (Graph,), "a graph")

    def given(self, name: str) -> bool:
        """Whether an attribute stands there."""
        return self.node.attributes.get(name) is not None and not isinstance(self.node.attributes[name], Reference)

    def numpy_type(self, name: str, default: int | None = None) -> np.dtype:
        """The element type that an attribute states by its number."""
        number = self.int(name, default)
        if number not in NUMPY:
            raise ModelError(f"{self.node}: attribute {name!r} is {number}, expected an element type")
        return NUMPY[number]

    def kernel_type(self, dtype: np.dtype) -> DType:
        found = kernel_dtype(dtype)
        if found is None:
            raise UnsupportedError(f"{self.node} computes with {dtype}, for which there are no kernels")
        return found

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node}: {what}")


def static(tensor: Tensor) -> tuple[int, ...]:
    """A shape whose sizes are all numbers, as those of a stage are."""
    return tuple(size for size in tensor.shape if isinstance(size, int))


_REQUIRED: Any = object()
