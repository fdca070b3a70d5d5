"""Spectra: discrete Fourier transforms, of windows too, and mel weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DataError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.shapes import MOST_ON_HOST, checked_shape
from weft.frontends.onnx.operators.table import onnx_op
from weft.ops.composites import narrowed, widened
from weft.ops.fourier import dft, frames, irfft, resized, rfft


@onnx_op("DFT")
def fourier_transform(c: Call) -> Any:
    b, x, shape = c.b, c.x(0), c.shape(0)
    rank = len(shape)
    if c.version >= 20:
        axis = int(c.known_scalar(2)) if c.has(2) else -2
    else:
        axis = c.int("axis", 1)
    axis = c.axis(axis, rank)
    if axis == rank - 1 or shape[-1] not in (1, 2):
        raise ShapeError(f"{c.node}: its input is {list(shape)} and its axis {axis}, expected [..., 1] or [..., 2]")
    inverse, onesided = c.flag("inverse"), c.flag("onesided")
    length = int(c.known_scalar(1)) if c.has(1) else shape[axis]
    dtype = b.tensor(x).dtype
    wide = widened(b, x)
    real, imaginary = _parts(c, wide)
    if inverse and onesided:
        length = length if c.has(1) else 2 * (shape[axis] - 1)
        made = irfft(b, (real, imaginary), length, [axis], scale=1 / length if length else 1.0)
        return narrowed(b, b.reshape(made, shape=(*static(b.tensor(made)), 1)), dtype)
    pair = resized(b, real, axis, length), None if imaginary is None else resized(b, imaginary, axis, length)
    return narrowed(b, _spectrum(c, pair, axis, onesided, inverse), dtype)


def _parts(c: Call, x: SSAValue) -> tuple[SSAValue, SSAValue | None]:
    """The real and the imaginary part, which stand in the last dimension."""
    *rest, count = static(c.b.tensor(x))
    starts = [(*(0 for _ in rest), n) for n in range(count)]
    found = [
        c.b.reshape(c.b.slice(x, starts=start, shape=(*rest, 1), steps=(1,) * len(start)), shape=tuple(rest))
        for start in starts
    ]
    return found[0], found[1] if count == 2 else None


def _spectrum(
    c: Call, x: tuple[SSAValue, SSAValue | None], axis: int, onesided: bool, inverse: bool = False
) -> SSAValue:
    """The transform along an axis, its parts in a last dimension; of one side only where that says all."""
    size = static(c.b.tensor(x[0]))[axis]
    if onesided and x[1] is None and not inverse:
        real, imaginary = rfft(c.b, x[0], [axis])
    else:
        real, found = dft(c.b, x, [axis], inverse=inverse, scale=1 / size if inverse and size else 1.0)
        imaginary = c.b.mul(real, c.b.full_like(real, 0)) if found is None else found
        if onesided:
            real, imaginary = (resized(c.b, each, axis, size // 2 + 1) for each in (real, imaginary))
    shape = (*static(c.b.tensor(real)), 1)
    return c.b.concat(*(c.b.reshape(each, shape=shape) for each in (real, imaginary)), dim=len(shape) - 1)


@onnx_op("STFT")
def stft(c: Call) -> Any:
    b, x, shape = c.b, c.x(0), c.shape(0)
    step = int(c.known_scalar(1))
    window = c.optional(2)
    length = int(c.known_scalar(3)) if c.has(3) else c.shape(2)[0]
    onesided = c.flag("onesided", True)
    signal, size = shape[1], length
    if step < 1 or size > signal:
        raise ShapeError(f"{c.node}: frames of {size} every {step} do not fit into {signal} elements")
    pair = _parts(c, b.reshape(x, shape=(*shape[:2], shape[2] if len(shape) > 2 else 1)))
    rows = [None if each is None else frames(b, each, size, step) for each in pair]
    if window is not None:
        rows = [None if each is None else b.mul(each, window) for each in rows]
    assert rows[0] is not None
    return _spectrum(c, (rows[0], rows[1]), 2, onesided)


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(c: Call) -> Any:
    bins, length, rate = (int(c.known_scalar(place)) for place in range(3))
    low, high = float(c.known_scalar(3)), float(c.known_scalar(4))
    dtype = c.numpy_type("output_datatype", 1)
    spectrum = length // 2 + 1
    if not 0 < bins < 1 << 16 or not 0 < spectrum < 1 << 20 or rate < 1:
        raise DataError(f"{c.node}: {bins} bins of {spectrum} frequencies at {rate} are not possible")
    checked_shape(c, (bins, spectrum), MOST_ON_HOST)
    edges = np.arange(bins + 2, dtype=np.float64)
    first, last = (2595 * math.log10(1 + each / 700) for each in (low, high))
    edges = edges * ((last - first) / len(edges)) + first
    places = ((length + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate).astype(np.int64)
    made = np.zeros((spectrum, bins))
    for n in range(bins):
        start, middle, end = places[n : n + 3]
        rise, fall = middle - start, end - middle
        if rise == 0:
            made[middle : middle + 1, n] = 1
        else:
            made[start : middle + 1, n] = (np.arange(start, middle + 1) - start) / rise
        if fall > 0:
            made[middle:end, n] = (end - np.arange(middle, end)) / fall
    return made.astype(dtype)
