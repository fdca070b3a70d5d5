"""The simulator's tensor cores: what `mma.sync` makes of the registers of a warp, as the PTX manual has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.backends.nvidia.check.simulator_layouts import holding, picks
from weft.backends.nvidia.check.simulator_values import Held
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.mma import Fragments
from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.ops.matmul.quantized import FORMS, dequantized
from weft.tile import dialect as tile

_LANES = np.arange(WARP)
_GROUP, _MEMBER = _LANES // 4, _LANES % 4


def multiply_fragments(fragments: Fragments, left: np.ndarray, right: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Registers [threads, ...] of a dot's operands, each of one element, to those of its result."""
    warps = len(left) // WARP
    halves, vector = fragments.halves, fragments.vector
    a = left.reshape(warps, WARP, fragments.chunks, fragments.tiles_m, halves, vector)
    b = right.reshape(warps, WARP, fragments.chunks, fragments.tiles_n, vector)
    if fragments.apart:
        return _multiply_apart(a, b, total)
    if fragments.turned:
        return _multiply_turned(fragments, a, b, total)
    c = total.reshape(warps, WARP, fragments.tiles_m, fragments.tiles_n, halves, 2).astype(np.float32)
    for warp, chunk, row, column in np.ndindex(warps, fragments.chunks, fragments.tiles_m, fragments.tiles_n):
        for start in range(0, vector, 4):
            parts = a[warp, :, chunk, row, :, start : start + 4]
            c[warp, :, row, column] += _instruction(parts, b[warp, :, chunk, column, start : start + 4])
    return c.reshape(total.shape)


def _multiply_turned(fragments: Fragments, a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The same with columns in place of rows."""
    warps, pairs = len(a), fragments.tiles_n // 2
    c = total.reshape(warps, WARP, pairs, 2, 2).astype(np.float32)
    for warp, chunk, pair in np.ndindex(warps, fragments.chunks, pairs):
        columns = b[warp, :, chunk, 2 * pair : 2 * pair + 2]
        for start in range(0, fragments.vector, 4):
            part = slice(start, start + 4)
            c[warp, :, pair] += _instruction(columns[..., part], a[warp, :, chunk, 0, 0, part])
    return c.reshape(total.shape)


def _multiply_apart(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """What each lane has of the columns, by what the lane holds of the row which reads it for it."""
    row = a[:, :, :, 0, 0][:, 9 * _MEMBER].astype(np.float32)
    return total + np.einsum("wlcv,wlcnv->wln", row, b.astype(np.float32)).reshape(total.shape)


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
    return np.stack([c[_GROUP + 8 * half][_LANES[:, None], 2 * _MEMBER[:, None] + [0, 1]] for half in range(halves)], 1)


def dequantize_registers(
    op: tile.DequantizeOp, layout: Layout, operands: Sequence[Held]
) -> tuple[np.ndarray, np.ndarray]:
    """The registers of weights, from those of codes and factors that the same thread has, and which are defined."""
    form, dtype = FORMS[op.form.data], from_attribute(op.dtype)
    assert isinstance(dtype, DType)
    taken: list[np.ndarray] = []
    defined = holding(layout).inside.copy()
    for held, together in zip(operands, (form.together, *[op.group.value.data] * 2), strict=False):
        places = picks(layout, held.layout, together)
        taken.append(np.take_along_axis(held.values, places, 1)[..., None])
        defined &= np.take_along_axis(held.defined, places, 1)
    codes, scales, zeros = (*taken, None, None)[:3]
    assert codes is not None
    values = dequantized(codes, scales, zeros, op.form.data, form.together)
    which = holding(layout).index[0] % form.together
    return np.take_along_axis(values, which[..., None], -1)[..., 0].astype(dtype.numpy).astype(np.float32), defined
