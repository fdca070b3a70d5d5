"""Element types by the names of the IR, as NumPy and safetensors have them; those of ml_dtypes when they are met."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

import numpy as np

from weft.errors import CorruptArtifactError

_SAFETENSORS = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "f8E4M3FN": "F8_E4M3",
    "f8E5M2": "F8_E5M2",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "ui64": "U64",
    "ui32": "U32",
    "ui16": "U16",
    "ui8": "U8",
    "i1": "BOOL",
    "complex<f32>": "C64",
    # The format has no names for these: Weft's own, and what others would refuse rather than misread.
    "complex<f64>": "C128",
    "i4": "WEFT_I4",
    "ui4": "WEFT_U4",
}
_BY_SAFETENSORS = {theirs: ours for ours, theirs in _SAFETENSORS.items()}
_NUMPY = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "i1": "bool",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
} | {f"{ours}{bits}": f"{theirs}{bits}" for ours, theirs in (("i", "int"), ("ui", "uint")) for bits in (8, 16, 32, 64)}
_ML_DTYPES = {
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "i4": "int4",
    "ui4": "uint4",
}


def is_element_type(name: str) -> bool:
    """Whether the IR has a type of this name."""
    return name in _SAFETENSORS


@lru_cache
def numpy_type(name: str) -> np.dtype:
    """NumPy's type for one of the IR's."""
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    return np.dtype(getattr(import_module("ml_dtypes"), _ML_DTYPES[name]))


def name_of(dtype: np.dtype) -> str:
    """The IR's name for a type of NumPy's, or NumPy's own where it has none."""
    name = next((ours for ours, theirs in (_NUMPY | _ML_DTYPES).items() if theirs == dtype.name), dtype.name)
    return name if dtype.isnative else f"{name} in the byte order of other machines"


def to_safetensors(name: str) -> str:
    return _SAFETENSORS[name]


def from_safetensors(name: str) -> str:
    """The IR's name for a type of a safetensors file."""
    if name not in _BY_SAFETENSORS:
        raise CorruptArtifactError(f"weights of the type {name[:40]!r}, which Weft does not have")
    return _BY_SAFETENSORS[name]
