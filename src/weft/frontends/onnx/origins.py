"""Arrays that sizes decide: how each was made is noted, so that a program of open sizes can make it again.

A model says `Range(Shape(x)[1])`: known at import, as the size is. A program that had it as a constant would be one for
this size. So an array keeps its `Origin`, and where the graph reads it, it is computed by the ops of its nodes:

    x + constant [0, 1, 2, 3, 4]      →      x + iota 5, which at another size is iota s0
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.frontends.onnx.dtypes import kernel_dtype
from weft.frontends.onnx.values import Known, Origin, Value

_MOST_PLACES = 1 << 20
"""Places that are computed at import, so that a size does not decide whether a call checks them."""
_LARGEST_SHAPE = 16
"""Elements of what tells a shape and becomes a value of the graph."""


def with_origins(made: Sequence[Value], origin: Origin) -> Sequence[Value]:
    """What a node gives, with a note of how it was made where sizes decide it.

    An origin with a converter is one of inputs that are all known: what it gives depends on sizes where they do.
    """
    if origin.converter is not None and not any(isinstance(each, Known) and each.origin for each in origin.inputs):
        return made
    return [
        Known(each.array, replace(origin, place=place)) if isinstance(each, Known) and _is_new(each) else each
        for place, each in enumerate(made)
    ]


def _is_new(value: Known) -> bool:
    return value.origin is None and kernel_dtype(value.array.dtype) is not None


def most_folded(inputs: Sequence[Value], most: int) -> int:
    """How many elements are computed at import: of places that sizes decide, more than of other arrays."""
    arrays = [each.array for each in inputs if isinstance(each, Known)]
    decided = any(isinstance(each, Known) and each.origin for each in inputs)
    return _MOST_PLACES if decided and all(array.dtype.kind in "iub" for array in arrays) else most


def is_shape(array: np.ndarray) -> bool:
    """Whether an array may be several sizes."""
    return array.ndim == 1 and 1 < array.size <= _LARGEST_SHAPE and array.dtype.kind == "i"


def is_count(array: np.ndarray) -> bool:
    """Whether an array is one number that may be a size."""
    if array.size != 1 or array.dtype.kind == "c":
        return False
    return array.dtype.kind in "iub" or float(array.reshape(-1)[0]).is_integer()
