"""What a script called its graphs with: arrays that failures depend on (an index out of range), as text and by name.

A candidate of a reduction has arguments of the original function under the names `x0`, `x1`, ...: those get what they
got then. Where the values of a program say that something is wrong with the data, its last result is not 0.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from weft.errors import WeftError
from weft.ops.graph import FuncOp

LARGEST = 4 << 20
"""Bytes up to which inputs are kept."""


@dataclass(frozen=True)
class KeptInputs:
    """The arguments of a call by their names, and what is wrong for each number that its last result can be."""

    arrays: Mapping[str, np.ndarray]
    checks: tuple[str, ...] = ()

    def of(self, function: FuncOp) -> list[np.ndarray]:
        """The arrays for a function's arguments; raises where one has no counterpart."""
        names = [name.data for name in function.arg_names] if function.arg_names else []
        if missing := [name for name in names if name not in self.arrays]:
            raise WeftError(f"nothing is known of the argument {missing[0]}")
        return [self.arrays[name] for name in names]

    def complaint(self, results: Sequence[np.ndarray]) -> str | None:
        """What the last result says is wrong with the data."""
        last = results[-1] if self.checks and len(results) else np.zeros(())
        return self.said(int(last)) if last.shape == () and last.dtype == np.int64 else None

    def said(self, code: int) -> str | None:
        """What such a number means; None for one that no check has."""
        return self.checks[code - 1] if 0 < code <= len(self.checks) else None

    def only(self, function: FuncOp) -> KeptInputs:
        names = [name.data for name in function.arg_names] if function.arg_names else []
        return KeptInputs({name: self.arrays[name] for name in names}, self.checks)

    def as_text(self) -> dict[str, Any]:
        """In words that JSON and Python know."""
        arrays = {name: _encoded(array) for name, array in self.arrays.items()}
        return {"arrays": arrays, "checks": list(self.checks)}


def read_inputs(text: Mapping[str, Any]) -> KeptInputs:
    return KeptInputs({name: _decoded(*each) for name, each in text["arrays"].items()}, tuple(text["checks"]))


def keep(arrays: Sequence[np.ndarray], checks: Sequence[str]) -> KeptInputs | None:
    """The arguments of a call, if they are not too large to be kept."""
    if sum(array.nbytes for array in arrays) > LARGEST:
        return None
    return KeptInputs({f"x{number}": array for number, array in enumerate(arrays)}, tuple(checks))


def _encoded(array: np.ndarray) -> tuple[str, list[int], str]:
    packed = zlib.compress(np.ascontiguousarray(array).tobytes())
    return array.dtype.name, list(array.shape), base64.b85encode(packed).decode()


def _decoded(name: str, shape: Sequence[int], text: str) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype).reshape(shape).copy()
