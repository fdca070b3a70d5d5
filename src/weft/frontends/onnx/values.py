"""What a name of a model stands for while its graph is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from xdsl.ir import SSAValue

from weft.frontends.onnx.dtypes import kernel_dtype
from weft.frontends.onnx.model import Node


@dataclass(frozen=True, eq=False)
class Known:
    """An array whose elements are known: initializers, constants, and what is computed of shapes."""

    array: np.ndarray
    origin: Origin | None = None
    """How it was computed of shapes, if it was."""


@dataclass(frozen=True, eq=False)
class Origin:
    """A result of a node that shapes decide; the converter is None where the node tells a shape itself."""

    node: Node
    place: int
    converter: Callable[..., Any] | None = None
    inputs: tuple[Value, ...] = ()
    version: int = 1


@dataclass(frozen=True, eq=False)
class Slot:
    """An array that a stage is given when it runs; its shape and element type are known, its elements are not."""

    place: int
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Traced:
    """A value of the graph that is being built."""

    value: SSAValue


@dataclass(frozen=True, eq=False)
class Items:
    """A sequence: how many values it has is known."""

    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Absent:
    """An optional that holds nothing, or an input that is left out."""


Value: TypeAlias = Known | Slot | Traced | Items | Absent


def is_tensor(value: Value) -> TypeGuard[Known | Slot | Traced]:
    return isinstance(value, Known | Slot | Traced)


def leaves(value: Value) -> Iterator[Known | Slot | Traced]:
    """The arrays in a value, in order."""
    if isinstance(value, Items):
        for each in value.values:
            yield from leaves(each)
    elif is_tensor(value):
        yield value


def has_kernels(value: Value) -> TypeGuard[Known | Slot | Traced]:
    """Whether a value is a tensor of a type that kernels compute with; strings, for one, are not."""
    match value:
        case Known(array):
            return kernel_dtype(array.dtype) is not None
        case Slot():
            return kernel_dtype(value.dtype) is not None
        case _:
            return isinstance(value, Traced)


def arrays_in(value: Value) -> Any:
    """The arrays of a value whose elements are known, in lists where there are sequences."""
    if isinstance(value, Items):
        return [arrays_in(each) for each in value.values]
    return value.array if isinstance(value, Known) else None


def replaced(value: Value, found: Mapping[SSAValue, np.ndarray]) -> Value:
    """A value with arrays in the place of those of the graph."""
    if isinstance(value, Items):
        return Items(tuple(replaced(each, found) for each in value.values))
    return Known(found[value.value]) if isinstance(value, Traced) else value
