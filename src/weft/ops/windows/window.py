"""Where windows lie: the geometry that convolution and pooling share. The last dimensions are the spatial ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as every
from typing import TypeAlias

import numpy as np

from weft.errors import ShapeError
from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum
from weft.ops.body import Body, Value

Padding: TypeAlias = tuple[tuple[Size, Size], ...]


def window_counts(
    name: str,
    sizes: Sequence[Size],
    window: Sequence[Size],
    strides: Sequence[Size],
    padding: Padding,
    dilation: Sequence[Size],
) -> tuple[Size, ...]:
    """How many windows fit into each of the spatial `sizes`, with the padding."""
    if not len(sizes) == len(window) == len(strides) == len(padding) == len(dilation):
        raise ShapeError(f"{name}: {window}, {strides}, {padding} and {dilation} do not describe windows over {sizes}")
    counts: list[Size] = []
    for size, extent, stride, (low, high), step in zip(sizes, window, strides, padding, dilation, strict=True):
        if any(isinstance(each, int) and each < 1 for each in (extent, stride, step)):
            raise ShapeError(
                f"{name}: a window of {extent} in steps of {step}, every {stride}, expected at least 1 each"
            )
        room = size + low + high - step * (extent - 1) - 1
        if isinstance(room, int) and room < 0:
            raise ShapeError(f"{name}: a window of {extent} in steps of {step} is larger than {size}, padded")
        counts.append(floordiv(room, stride) + 1)
    return tuple(counts)


def ceil_extension(size: Size, extent: Size, stride: Size, padding: tuple[Size, Size], step: Size = 1) -> Size:
    """The further padding after a dimension that makes room for a last window that is partly outside.

    It is there (`ceil_mode`) only if it starts within the operand or the padding before it.
    """
    low, high = padding
    reach = step * (extent - 1) + 1
    counted = ceildiv(size + low + high - reach, stride) + 1
    starting = ceildiv(size + low, stride)
    return maximum((minimum(counted, starting) - 1) * stride + reach - size - low - high, 0)


def window_place(
    body: Body,
    index: Sequence[Size],
    over: Sequence[Size],
    sizes: Sequence[Size],
    strides: Sequence[Size],
    padding: Padding,
    dilation: Sequence[Size],
) -> tuple[list[Size], Value | None]:
    """The position of element `over` of window `index`, and whether it lies within the operand's `sizes`."""
    place: list[Size] = []
    mask: Value | None = None
    for i, k, size, stride, (low, high), step in zip(index, over, sizes, strides, padding, dilation, strict=True):
        place.append(i * stride + k * step - low)
        if low != 0 or high != 0:
            mask = body.both(mask, body.inside(place[-1], size))
    return place, mask


def window_slices(
    over: Sequence[int], counts: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[slice, ...]:
    """Where element `over` of all `counts` windows lies in the padded spatial dimensions."""
    return tuple(
        slice(k * step, k * step + (count - 1) * stride + 1, stride)
        for k, step, count, stride in zip(over, dilation, counts, strides, strict=True)
    )


def windows(
    x: np.ndarray,
    window: Sequence[int],
    counts: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    value: float | int,
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Each element of the window, and for it the elements of all `counts` windows; `value` is the padding."""
    lead = [(0, 0)] * (x.ndim - len(window))
    padded = np.pad(x, [*lead, *padding], constant_values=np.asarray(value).astype(x.dtype))
    for over in every(*map(range, window)):
        yield over, padded[(..., *window_slices(over, counts, strides, dilation))]
