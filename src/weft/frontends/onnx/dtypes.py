"""ONNX's element types: their numbers, their NumPy types, and which of them kernels compute with."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from weft.ir.types import DTYPES, DType, dtype_of_numpy

_NAMES: dict[int, tuple[str, type | str, int]] = {
    1: ("float32", np.float32, 32),
    2: ("uint8", np.uint8, 8),
    3: ("int8", np.int8, 8),
    4: ("uint16", np.uint16, 16),
    5: ("int16", np.int16, 16),
    6: ("int32", np.int32, 32),
    7: ("int64", np.int64, 64),
    8: ("string", "O", 0),
    9: ("bool", np.bool_, 8),
    10: ("float16", np.float16, 16),
    11: ("float64", np.float64, 64),
    12: ("uint32", np.uint32, 32),
    13: ("uint64", np.uint64, 64),
    14: ("complex64", np.complex64, 64),
    15: ("complex128", np.complex128, 128),
    16: ("bfloat16", ml_dtypes.bfloat16, 16),
    17: ("float8e4m3fn", ml_dtypes.float8_e4m3fn, 8),
    18: ("float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 8),
    19: ("float8e5m2", ml_dtypes.float8_e5m2, 8),
    20: ("float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 8),
    21: ("uint4", ml_dtypes.uint4, 4),
    22: ("int4", ml_dtypes.int4, 4),
    23: ("float4e2m1", ml_dtypes.float4_e2m1fn, 4),
    24: ("float8e8m0", ml_dtypes.float8_e8m0fnu, 8),
    25: ("uint2", ml_dtypes.uint2, 2),
    26: ("int2", ml_dtypes.int2, 2),
    27: ("float6e2m3", ml_dtypes.float6_e2m3fn, 8),
    28: ("float6e3m2", ml_dtypes.float6_e3m2fn, 8),
}

NUMPY: dict[int, np.dtype] = {number: np.dtype(type_) for number, (_, type_, _) in _NAMES.items()}
BITS: dict[int, int] = {number: bits for number, (_, _, bits) in _NAMES.items()}
"""Bits that an element takes in a file."""

STRINGS = np.dtype(object)
"""Arrays of strings are NumPy's arrays of objects."""

NUMBERS: dict[np.dtype, int] = {dtype: number for number, dtype in NUMPY.items()}

_HOST_ONLY = {DTYPES[name].numpy for name in ("i4", "ui4", "complex<f32>", "complex<f64>")}
# Only the 8-bit floats that kernels convert are Weft's: others are stored, and converted on the host.


def name_of(number: int) -> str:
    """What ONNX calls a type."""
    return _NAMES[number][0] if number in _NAMES else f"type {number}"


def kernel_dtype(dtype: np.dtype) -> DType | None:
    """The type that kernels know an array's elements by; None for those that stay on the host, strings among them."""
    if dtype in _HOST_ONLY or dtype not in _KERNEL:
        return None
    return dtype_of_numpy(dtype)


_KERNEL = {dtype.numpy for dtype in DTYPES.values()}
