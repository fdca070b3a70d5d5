"""Changes of the element type. What no kernel knows (4 bits, some 8-bit floats, strings) is converted on the host."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from weft.frontends.onnx.call import Call
from weft.frontends.onnx.dtypes import STRINGS, kernel_dtype
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import f32

_SATURATED = {
    np.dtype(each)
    for each in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
}


@onnx_op("Cast")
def cast(c: Call) -> Any:
    if c.version < 6:
        names = {"FLOAT": "float32", "DOUBLE": "float64", "STRING": "object"}
        word = c.string("to")
        return to_type(c, np.dtype(names.get(word, word.lower())))
    return to_type(c, c.numpy_type("to"))


@onnx_op("CastLike")
def cast_like(c: Call) -> Any:
    return to_type(c, c.dtype(1))


def to_type(c: Call, dtype: np.dtype) -> Any:
    """The first input in another type; `saturate` says what overflows to 8-bit floats become."""
    source, saturate = c.dtype(0), c.flag("saturate", True)
    made = kernel_dtype(dtype)
    if kernel_dtype(source) is None or made is None:
        mode = c.string("round_mode", "up")
        return c.host(lambda array: converted(array, dtype, saturate, mode), values=c.inputs[:1])
    x = c.x(0)
    if source == dtype:
        return x
    if dtype in _SATURATED:
        limit = float(ml_dtypes.finfo(dtype).max)
        wide = x if c.b.tensor(x).dtype.is_float and c.b.tensor(x).dtype.bits >= 16 else c.b.cast(x, dtype=f32)
        if saturate:
            wide = c.b.clamp(wide, low=-limit, high=limit)
        x = wide
    return c.b.cast(x, dtype=made)


def converted(array: np.ndarray, dtype: np.dtype, saturate: bool = True, mode: str = "up") -> np.ndarray:
    """An array in another type, by NumPy."""
    if dtype == STRINGS:
        return _as_strings(array)
    if array.dtype == STRINGS:
        return _from_strings(array, dtype)
    if dtype == ml_dtypes.float8_e8m0fnu:
        return _powers_of_two(array.astype(np.float32), saturate, mode)
    if dtype in _SATURATED and saturate:
        limit = float(ml_dtypes.finfo(dtype).max)
        wide = array.astype(np.float32)
        return np.clip(wide, -limit, limit).astype(dtype)
    if dtype.kind == "V" or array.dtype.kind == "V":
        if dtype in _NARROW:
            return _wrapped(array, dtype, _NARROW[dtype])
        return array.astype(np.float32).astype(dtype) if array.dtype.itemsize == 1 else array.astype(dtype)
    return array.astype(dtype)


_NARROW = {
    np.dtype(ml_dtypes.int4): (4, True),
    np.dtype(ml_dtypes.uint4): (4, False),
    np.dtype(ml_dtypes.int2): (2, True),
    np.dtype(ml_dtypes.uint2): (2, False),
}
"""Integers of a few bits, and whether they have a sign."""


def _wrapped(array: np.ndarray, dtype: np.dtype, form: tuple[int, bool]) -> np.ndarray:
    """Integers of a few bits: towards zero, and around at the ends as other integers go."""
    bits, signed = form
    whole = np.trunc(array.astype(np.float64)).astype(np.int64) & ((1 << bits) - 1)
    if signed:
        whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
    return whole.astype(np.int8).astype(dtype)


def _powers_of_two(array: np.ndarray, saturate: bool, mode: str) -> np.ndarray:
    """The exponents of floats, which are all that this type has."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.int64)
    fraction = bits & 0x7FFFFF
    half = 0x400000
    up = {"up": fraction > 0, "down": np.zeros(array.shape, bool), "nearest": fraction >= half}
    exponent = exponent + up[mode]
    exponent = np.where(np.isinf(array), 254 if saturate else 255, np.minimum(exponent, 254 if saturate else 255))
    exponent = np.where(np.isnan(array), 255, exponent)
    return exponent.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).reshape(array.shape)


def _as_strings(array: np.ndarray) -> np.ndarray:
    if array.dtype == STRINGS:
        return array
    if array.dtype == bool:
        words = ["1" if each else "0" for each in array.reshape(-1)]
    elif array.dtype.kind in "iu":
        words = [str(int(each)) for each in array.reshape(-1)]
    else:
        words = [_float_text(each) for each in array.reshape(-1)]
    return np.array(words, object).reshape(array.shape)


def _float_text(number: Any) -> str:
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    return str(number)


def _from_strings(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    words = [str(each) for each in array.reshape(-1)]
    if dtype.kind in "iub":
        numbers = [int(word) if word.lstrip("+-").isdecimal() else int(float(word)) for word in words]
        return np.array(numbers, dtype).reshape(array.shape)
    wide = np.array([float(word) for word in words], np.float64).reshape(array.shape)
    return converted(wide, dtype)


@onnx_op("BitCast")
def bit_cast(c: Call) -> Any:
    source, dtype = c.dtype(0), c.numpy_type("to")
    made = kernel_dtype(dtype)
    if source == dtype:
        return c.x(0)
    if kernel_dtype(source) is None or made is None or bool in (source, dtype):
        return c.host(lambda array: np.ascontiguousarray(array).view(dtype), values=c.inputs[:1])
    return c.b.bitcast(c.x(0), dtype=made)
