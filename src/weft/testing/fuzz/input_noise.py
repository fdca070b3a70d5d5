"""How much a result of arrays means: whether inputs that differ in their last place change it as much as it is off.

A cosine of a large number, or a logarithm near 1, is as good as what went into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import ml_dtypes
import numpy as np

RUNS, FACTOR = 6, 4.0


def is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float8"))


def moved(arrays: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """The arrays with every float one unit in the last place up or down, by chance, or where it was."""
    rng = np.random.default_rng(seed)
    return [_moved(array, rng) if is_float(array) else array.copy() for array in arrays]


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    step = float(cast(Any, ml_dtypes.finfo(array.dtype)).eps)
    with np.errstate(all="ignore"):
        return (array.astype(np.float64) * (1 + rng.integers(-1, 2, array.shape) * step)).astype(array.dtype)


def is_noise(found: np.ndarray, expected: np.ndarray, again: Callable[[int], np.ndarray | None]) -> bool:
    """Whether a result is off by no more than other inputs make it: `again` gives it for those of a seed."""
    others = [other for seed in range(1, RUNS + 1) if (other := again(seed)) is not None]
    others = [other for other in others if (other.shape, other.dtype) == (expected.shape, expected.dtype)]
    if not others or (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    if not is_float(expected):
        return bool(np.all((found == expected) | np.any([other != expected for other in others], axis=0)))
    a, b, *rest = (each.astype(np.float64) for each in (found, expected, *others))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        changes = np.any([np.isfinite(each) != np.isfinite(b) for each in rest], axis=0)
        if not np.all((np.isfinite(a) == np.isfinite(b)) | changes):
            return False
    spread = np.max([np.where(np.isfinite(each), np.abs(each - b), np.inf) for each in rest], axis=0, initial=0.0)
    return bool(np.all(np.abs(a - b)[finite] <= FACTOR * float(np.max(spread[finite], initial=0.0))))
