"""Scalar arguments: numbers as the words in which kernels take them, 64 bits whose first bytes are the number."""

from __future__ import annotations

import struct

from weft.ir.expr import Size
from weft.ir.types import DTYPES


def word_of(dtype: str, value: Size | float) -> Size:
    """The word that holds a number of a type; narrow floats travel as those of 32 bits. A size is its own word."""
    if not DTYPES[dtype].is_float:
        assert not isinstance(value, float)
        return value
    assert isinstance(value, int | float)
    form = "<d" if dtype == "f64" else "<f4x"
    return struct.unpack("<q", struct.pack(form, value))[0]


def signed(word: int) -> int:
    """The same 64 bits as a signed integer."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word
