"""Matrices rearranged into panels of columns, on NumPy's arrays alone: what `packing` decides, carried out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np


def panel_shape(batch: int, K: int, N: int, NR: int, together: int = 1, unit: int = 1) -> tuple[int, ...]:
    """The shape of packed panels: `together` of K are neighbours, and K is filled up to a multiple of `unit` then."""
    if together == 1:
        return (batch, -(-N // NR), K, NR)
    depth = -(-K // unit) * unit
    return (batch, -(-N // NR), -(-depth // together), NR, together)


def pack_panels(
    array: np.ndarray,
    batch: int,
    K: int,
    N: int,
    NR: int,
    together: int = 1,
    unit: int = 1,
    zeros: np.ndarray | None = None,
) -> np.ndarray:
    """Pack matrices [batch..., K, N] of any strides, into `zeros` where there is memory for it."""
    bits = np.dtype(f"u{array.itemsize}")
    source = array.view(bits).reshape(batch, K, N)
    shape = panel_shape(batch, K, N, NR, together, unit)
    if together > 1:
        return _in_groups(source, shape, K, N).view(array.dtype)
    packed = np.zeros(shape, bits) if zeros is None else zeros.view(bits).reshape(shape)
    whole, rest = divmod(N, NR)
    if whole and K:
        matrix, row, column = source.strides
        panels = np.lib.stride_tricks.as_strided(
            source, (batch, whole, K, NR), (matrix, column * NR, row, column), writeable=False
        )
        packed[:, :whole] = panels
    if rest:
        packed[:, whole, :, :rest] = source[:, :, whole * NR :]
    return packed.view(array.dtype)


def pack_matrices(
    array: np.ndarray,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    NR: int,
    together: int = 1,
    unit: int = 1,
    zeros: np.ndarray | None = None,
) -> np.ndarray:
    """Pack the matrices [..., K, N] that lie in an array, seen as flat, at these strides in elements."""
    flat = np.ascontiguousarray(array).reshape(-1)[offset:]
    size = flat.itemsize
    view = np.lib.stride_tricks.as_strided(flat, tuple(shape), [s * size for s in strides], writeable=False)
    *batch, K, N = shape
    return pack_panels(view, prod(batch), K, N, NR, together, unit, zeros)


def _in_groups(source: np.ndarray, shape: tuple[int, ...], K: int, N: int) -> np.ndarray:
    batch, count, groups, width, together = shape
    filled = np.zeros((batch, groups * together, count * width), source.dtype)
    filled[:, :K, :N] = source
    split = filled.reshape(batch, groups, together, count, width)
    return np.ascontiguousarray(split.transpose(0, 3, 1, 4, 2))
