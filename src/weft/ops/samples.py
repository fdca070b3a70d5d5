"""Sample inputs of an op: shapes and ranges, from which the generated tests draw arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.ir.types import DType, boolean, f32, i64

MOVED = (f32, i64, boolean)
"""Element types of ops that move elements as they are: one of each size and kind stands for all."""


@dataclass(frozen=True)
class Input:
    """A random array: its shape, range, and its element type where that is not the one under test."""

    shape: tuple[int, ...]
    low: float = -4.0
    high: float = 4.0
    dtype: DType | None = None

    def array(self, rng: np.random.Generator, dtype: DType) -> np.ndarray:
        dtype = self.dtype or dtype
        if dtype.kind == "bool":
            return rng.random(self.shape) < 0.5
        if dtype.is_integer:
            low = max(self.low, 0) if dtype.kind == "uint" else self.low
            return rng.integers(int(low), max(int(self.high), int(low) + 1), self.shape).astype(dtype.numpy)
        return rng.uniform(self.low, self.high, self.shape).astype(dtype.numpy)


@dataclass(frozen=True)
class Sample:
    """Inputs and parameters of one call; `dtypes` are the element types it is meant for."""

    inputs: tuple[Input, ...]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dtypes: tuple[DType, ...] = (f32,)


SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 33))


def unary(low: float = -4.0, high: float = 4.0, dtypes: Sequence[DType] = (f32,), **params: Any) -> tuple[Sample, ...]:
    """One operand, over the usual shapes."""
    return tuple(Sample((Input(shape, low, high),), params, tuple(dtypes)) for shape in SHAPES)


def binary(
    low: float = -4.0, high: float = 4.0, dtypes: Sequence[DType] = (f32,), low2: float | None = None, **params: Any
) -> tuple[Sample, ...]:
    """Two operands: equal shapes and the ways of broadcasting; `low2` bounds the second."""
    pairs = [(s, s) for s in SHAPES] + [((3, 5), (5,)), ((4, 1), (1, 6)), ((), (2, 3)), ((2, 1, 9), (1, 3, 1))]
    second = low if low2 is None else low2
    return tuple(Sample((Input(a, low, high), Input(b, second, high)), params, tuple(dtypes)) for a, b in pairs)
