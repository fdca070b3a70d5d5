"""Spectra: mel weights, and discrete Fourier transforms as products with the matrix of waves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DataError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.movement import lifted, padded
from weft.frontends.onnx.operators.table import onnx_op
from weft.ops.composites import narrowed, widened


def _waves(length: int, count: int, inverse: bool, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of [length, count]."""
    if length > 1 << 13:
        raise DataError(f"a Fourier transform of {length} elements is too long: at most {1 << 13}")
    turns = np.outer(np.arange(length), np.arange(count)) % length
    angle = (2 if inverse else -2) * math.pi * turns / length
    factor = 1 / length if inverse else 1.0
    return (np.cos(angle) * factor).astype(dtype), (np.sin(angle) * factor).astype(dtype)


def transformed(c: Call, parts: tuple[SSAValue, SSAValue | None], count: int, inverse: bool) -> tuple[SSAValue, SSAValue]:
    """The transform along the last dimension of real and imaginary parts; `count` of its elements."""
    b, (real, imaginary) = c.b, parts
    shape = static(b.tensor(real))
    rows = math.prod(shape[:-1])
    cos, sin = (lifted(c, each) for each in _waves(shape[-1], count, inverse, b.tensor(real).dtype.numpy))

    def times(x: SSAValue, y: SSAValue) -> SSAValue:
        return b.reshape(b.dot(b.reshape(x, shape=(rows, shape[-1])), y), shape=(*shape[:-1], count))

    made = times(real, cos), times(real, sin)
    if imaginary is not None:
        made = b.sub(made[0], times(imaginary, sin)), b.add(made[1], times(imaginary, cos))
    return made


@onnx_op("DFT")
def dft(c: Call) -> Any:
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
    if inverse and onesided:
        return _inverse_onesided(c, wide, axis, length if c.has(1) else 2 * (shape[axis] - 1))
    wide = _resized(c, wide, axis, length)
    count = length // 2 + 1 if onesided else length
    real, imaginary = _split(c, wide, axis)
    made = transformed(c, (real, imaginary if shape[-1] == 2 else None), count, inverse)
    return narrowed(b, _joined(c, made, axis), dtype)


def _resized(c: Call, x: SSAValue, axis: int, length: int) -> SSAValue:
    """Cut off, or continued by zeros, along an axis."""
    shape = static(c.b.tensor(x))
    high = [length - shape[axis] if d == axis else 0 for d in range(len(shape))]
    return padded(c, x, [0] * len(shape), high, "constant", 0.0)


def _split(c: Call, x: SSAValue, axis: int) -> tuple[SSAValue, SSAValue]:
    """The parts of complex numbers, with the axis that is transformed last."""
    shape = static(c.b.tensor(x))
    order = (*(d for d in range(len(shape) - 1) if d != axis), axis, len(shape) - 1)
    moved = c.b.permute(x, dims=order)
    sizes = static(c.b.tensor(moved))
    pieces = [
        c.b.reshape(
            c.b.slice(
                moved,
                starts=(*(0 for _ in sizes[:-1]), min(n, sizes[-1] - 1)),
                shape=(*sizes[:-1], 1),
                steps=(1,) * len(sizes),
            ),
            shape=sizes[:-1],
        )
        for n in (0, 1)
    ]
    return pieces[0], pieces[1]


def _joined(c: Call, parts: tuple[SSAValue, ...], axis: int) -> SSAValue:
    shape = static(c.b.tensor(parts[0]))
    rank = len(shape)
    wide = [c.b.reshape(each, shape=(*shape, 1)) for each in parts]
    made = c.b.concat(*wide, dim=rank) if len(wide) > 1 else wide[0]
    order = [*range(rank - 1)]
    order.insert(axis, rank - 1)
    return c.b.permute(made, dims=(*order, rank))


def _inverse_onesided(c: Call, x: SSAValue, axis: int, length: int) -> Any:
    """Real numbers from the half of a spectrum that determines them."""
    b = c.b
    half = length // 2 + 1
    real, imaginary = _split(c, _resized(c, x, axis, half), axis)
    cos, sin = _waves(length, length, True, b.tensor(real).dtype.numpy)
    weight = np.full(half, 2.0)
    weight[0] = 1.0
    if length % 2 == 0:
        weight[-1] = 1.0
    shape = static(b.tensor(real))
    rows = math.prod(shape[:-1])
    tables = [lifted(c, (each[:half] * weight[:, None]).astype(each.dtype)) for each in (cos, sin)]
    flat = [b.reshape(each, shape=(rows, half)) for each in (real, imaginary)]
    made = b.sub(b.dot(flat[0], tables[0]), b.dot(flat[1], tables[1]))
    return _joined(c, (b.reshape(made, shape=(*shape[:-1], length)),), axis)


@onnx_op("STFT")
def stft(c: Call) -> Any:
    b, x, shape = c.b, c.x(0), c.shape(0)
    step = int(c.known_scalar(1))
    window = c.optional(2)
    length = int(c.known_scalar(3)) if c.has(3) else c.shape(2)[0]
    onesided = c.flag("onesided", True)
    signal, size = shape[1], length
    frames = (signal - size) // step + 1
    if step < 1 or frames < 1:
        raise ShapeError(f"{c.node}: frames of {size} every {step} do not fit into {signal} elements")
    places = np.arange(frames)[:, None] * step + np.arange(size)
    parts = len(shape) > 2 and shape[2] == 2
    wide = b.reshape(x, shape=(*shape[:2], shape[2] if len(shape) > 2 else 1))
    framed = b.take(wide, lifted(c, places.astype(np.int64)), dim=1)  # [N, frames, size, parts]
    if window is not None:
        framed = b.mul(framed, b.reshape(window, shape=(1, 1, size, 1)))
    real, imaginary = _split(c, framed, 2)
    count = size // 2 + 1 if onesided else size
    return _joined(c, transformed(c, (real, imaginary if parts else None), count, False), 2)


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(c: Call) -> Any:
    bins, length, rate = (int(c.known_scalar(place)) for place in range(3))
    low, high = float(c.known_scalar(3)), float(c.known_scalar(4))
    dtype = c.numpy_type("output_datatype", 1)
    spectrum = length // 2 + 1
    if not 0 < bins < 1 << 16 or not 0 < spectrum < 1 << 20 or rate < 1:
        raise DataError(f"{c.node}: {bins} bins of {spectrum} frequencies at {rate} are not possible")
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
