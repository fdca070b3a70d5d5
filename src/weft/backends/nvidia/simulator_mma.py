"""The simulator's tensor cores: what `mma.sync` makes of the registers of a warp, as the PTX manual has it."""

from __future__ import annotations

import numpy as np

from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.mma import Fragments

_LANES = np.arange(WARP)
_GROUP, _MEMBER = _LANES // 4, _LANES % 4


def multiply_fragments(fragments: Fragments, left: np.ndarray, right: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Registers [threads, ...] of a product's operands, each of one element, to those of its result."""
    warps = len(left) // WARP
    halves, vector = fragments.halves, fragments.vector
    a = left.reshape(warps, WARP, fragments.chunks, fragments.tiles_m, halves, vector)
    b = right.reshape(warps, WARP, fragments.chunks, fragments.tiles_n, vector)
    c = total.reshape(warps, WARP, fragments.tiles_m, fragments.tiles_n, halves, 2).astype(np.float32)
    for warp, chunk, row, column in np.ndindex(warps, fragments.chunks, fragments.tiles_m, fragments.tiles_n):
        for start in range(0, vector, 4):
            parts = a[warp, :, chunk, row, :, start : start + 4]
            c[warp, :, row, column] += _instruction(parts, b[warp, :, chunk, column, start : start + 4])
    return c.reshape(total.shape)


def _instruction(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One instruction: a [lanes, halves, 4] and b [lanes, 4], to c [lanes, halves, 2]."""
    halves = left.shape[1]
    a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
    for register in range(4):  # a pair at 2t, and one at 2t + 8
        k = 2 * _MEMBER + register % 2 + 8 * (register // 2)
        for half in range(halves):
            a[_GROUP + 8 * half, k] = left[:, half, register]
        b[k, _GROUP] = right[:, register]
    c = a @ b
    rows = _GROUP[:, None, None] + 8 * np.arange(halves, dtype=np.int64)[:, None]
    columns = 2 * _MEMBER[:, None, None] + np.arange(2)
    return c[rows, columns]
