"""Addresses of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from weft.runtime.array_address import address_of


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4), np.float32),
        np.zeros((4, 6))[1:, ::2],
        np.zeros((3, 4), order="F").T[1:],
        np.zeros((2, 2))[::-1],
        np.array(3, np.int64),
        np.zeros(3, bool)[2:],
        np.frombuffer(b"read only", np.uint8),
        np.zeros((2, 0)),
    ],
)
def test_an_array_lies_where_numpy_says(array: np.ndarray) -> None:
    assert address_of(array) == array.__array_interface__["data"][0]
