"""Arguments of a call checked against a manifest: names, element types, shapes, and the values of symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.artifact.element_types import name_of, numpy_type
from weft.artifact.manifest import Argument, Manifest, Range, parsed_shape
from weft.diagnostics import nearest
from weft.errors import DTypeError, GuardError, ShapeError
from weft.ir.expr import Expr, evaluate, symbols_of


def described(argument: Argument) -> str:
    """An argument as people read it: `x f32[s0, 384]`."""
    return f"{argument.name} {argument.dtype}[{', '.join(map(str, argument.shape))}]"


def most_of(range_: Range) -> str:
    return "any" if range_.most is None else str(range_.most)


class Signature:
    """What a model takes."""

    def __init__(self, manifest: Manifest) -> None:
        self.name = manifest.name
        self.free = [argument for argument in manifest.arguments if not argument.constant]
        self.ranges = manifest.ranges
        self._shapes = [parsed_shape(argument.shape) for argument in self.free]
        self._types = [numpy_type(argument.dtype) for argument in self.free]

    def __str__(self) -> str:
        sizes = "".join(f", {each.symbol} from {each.least} to {most_of(each)}" for each in self.ranges)
        return f"{self.name}({', '.join(map(described, self.free))}){sizes}"

    def arrays(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays of a call in the order of the arguments, of the right types."""
        names = [argument.name for argument in self.free]
        if len(given) + len(named) != len(names) or not set(named) <= set(names[len(given) :]):
            got = f"{len(given)} by position" + (f" and {', '.join(named)} by name" if named else "")
            missing = [name for name in names[len(given) :] if name not in named]
            unknown = [f"{name}{nearest(name, missing)}" for name in named if name not in names[len(given) :]]
            told = [f"{', '.join(missing)} missing"] if missing else []
            told += [f"{', '.join(unknown)} not taken"] if unknown else []
            raise GuardError(
                f"{self.name} takes {', '.join(names) or 'nothing'}; got {': '.join((got, *told[:1]))}"
                + "".join(f", {each}" for each in told[1:]),
                hint=f"it takes {self}",
            )
        values = dict(zip(names, given, strict=False)) | dict(named)
        arrays = [self._array(name, values[name]) for name in names]
        for argument, array, dtype in zip(self.free, arrays, self._types, strict=True):
            if array.dtype != dtype:
                got = name_of(array.dtype)
                raise DTypeError(
                    f"the argument {argument.name} of {self.name} is of type {argument.dtype}, got {got}",
                    hint=f"it takes {self}",
                )
        return arrays

    def _array(self, name: str, value: Any) -> np.ndarray:
        """An argument as an array of NumPy's, on the same memory where that can be."""
        if isinstance(value, np.ndarray):
            return value  # pyright: ignore[reportUnknownVariableType]
        try:
            return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:  # nested without order, not to be lent
            got = f"a {type(value).__name__} that NumPy cannot read: {str(error)[:200]}"
            raise DTypeError(f"the argument {name} of {self.name} is {got}", hint=f"it takes {self}") from error

    def sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """The values of symbols, by the shapes of arrays, which have to fit each other."""
        bound: dict[str, int] = {}
        for argument, shape, array in zip(self.free, self._shapes, arrays, strict=True):
            if len(shape) != array.ndim:
                raise self._misshapen(argument, array)
            for size, actual in zip(shape, array.shape, strict=True):
                if isinstance(size, Expr) and str(size) in size.symbols:
                    bound.setdefault(str(size), actual)
        for argument, shape, array in zip(self.free, self._shapes, arrays, strict=True):
            for size, actual in zip(shape, array.shape, strict=True):
                if symbols_of(size) <= bound.keys() and evaluate(size, bound) != actual:
                    raise self._misshapen(argument, array)
        for each in self.ranges:
            size = bound.get(each.symbol, each.least)
            if size < each.least or (each.most is not None and size > each.most):
                raise GuardError(
                    f"{self.name} was compiled for {each.symbol} from {each.least} to {most_of(each)}, got {size}",
                    hint="compile it for this size",
                )
        return bound

    def _misshapen(self, argument: Argument, array: np.ndarray) -> ShapeError:
        return ShapeError(
            f"the argument {argument.name} of {self.name} has the shape ({', '.join(map(str, argument.shape))}), "
            f"got {array.shape}",
            hint=f"it takes {self}; sizes with one name are equal",
        )
