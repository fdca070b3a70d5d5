"""Sizes to import a model at beside those of a call: numbers that tell apart what depends on which size.

At 2 rows of 8 and 3 of 12, a size of 24 and then 36 may be twelve times the rows, or three times their length. At 5
rows of 13 it is one of them.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

import numpy as np

from weft.frontends.onnx.model import Dimension

Shape: TypeAlias = Sequence[Dimension] | None


def other_sizes(shapes: Sequence[Shape], arrays: Sequence[np.ndarray]) -> Generator[list[np.ndarray]]:
    """Arrays without memory of their own, at other sizes where shapes leave these open: larger ones, then smaller.

    Sizes of one name stay one; so do those that have no name and are the same now.
    """
    sizes = {
        (name or 0, size)
        for shape, array in zip(shapes, arrays, strict=True)
        for name, size in _open(shape, array)
        if size > 1  # 0 and 1 are other programs
    }
    for upwards in (True, False):
        used = {size for _, size in sizes}
        chosen: dict[tuple[str | int, int], int] = {}
        for key in sorted(sizes, key=lambda each: each[1], reverse=not upwards):
            found = _prime(key[1], used, upwards)
            if found is None:
                break
            chosen[key] = found
            used.add(found)
        if sizes and len(chosen) == len(sizes):
            yield [_array(shape, array, chosen) for shape, array in zip(shapes, arrays, strict=True)]


def _open(shape: Shape, array: np.ndarray) -> list[tuple[str | None, int]]:
    stated: Sequence[Dimension] = (None,) * array.ndim if shape is None else shape
    return [(name, size) for name, size in zip(stated, array.shape, strict=True) if not isinstance(name, int)]


def _array(shape: Shape, array: np.ndarray, chosen: dict[tuple[str | int, int], int]) -> np.ndarray:
    stated: Sequence[Dimension] = (None,) * array.ndim if shape is None else shape
    sizes: list[int] = []
    for place, name in enumerate(stated):
        size = int(array.shape[place])
        sizes.append(size if isinstance(name, int) else chosen.get((name or 0, size), size))
    return np.broadcast_to(np.zeros((), array.dtype), sizes)


def _prime(size: int, used: set[int], upwards: bool) -> int | None:
    candidates = range(max(size + 1, 5), 2 * size + 100) if upwards else range(size - 1, 2, -1)
    for candidate in candidates:
        if candidate not in used and all(candidate % each for each in range(2, int(candidate**0.5) + 1)):
            return candidate
    return None
