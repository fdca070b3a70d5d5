"""New arrays in given strides: they hold what is written to them, in memory of their own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.runtime.constants import strided_zeros
from weft.runtime.numpy_arrays import NumpyArrays


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        *(((3, 4), strides) for strides in ((4, 1), (-4, 1), (4, -1), (-4, -1), (1, -3), (-10, 2))),
        *(((5,), (-1,)), ((5,), (-3,)), ((1, 4), (-100, -1)), ((), ()), ((0, 3), (-3, -1))),
    ],
)
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_strides_may_go_backwards(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    made = strided_zeros(shape, strides, dtype)
    low, high = np.lib.array_utils.byte_bounds(made)
    owner: Any = made
    while owner.base is not None:
        owner = owner.base
    start = owner.__array_interface__["data"][0]
    assert start <= low and high <= start + max(owner.nbytes, 1)
    made[...] = values
    np.testing.assert_array_equal(made.astype(np.float64), values.astype(np.float64))


def test_a_copy_has_the_strides_of_an_array_that_goes_backwards() -> None:
    turned = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::-1]
    copy = NumpyArrays().cloned(turned)
    assert copy.strides == turned.strides and not np.shares_memory(copy, turned)
    np.testing.assert_array_equal(copy, turned)
