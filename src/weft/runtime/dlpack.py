"""Arrays of other libraries, by the protocols that all of them speak: DLPack, and CUDA's array interface.

NumPy reads DLPack too, but knows neither the types that machine learning has added nor memory of a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from weft.errors import DTypeError, UnsupportedError
from weft.ir.types import DTYPES, DType, dtype_of_numpy
from weft.runtime.strides import row_major

CPU, CUDA = 1, 2
_HOST_KINDS = (CPU, 3)
"""The processor's memory, and that part of it which a GPU can read as well."""
_DEVICE_KINDS = (CUDA, 13)
"""A GPU's memory, and memory that is managed for both."""

_KINDS = {(0, "int"), (1, "uint"), (2, "float"), (5, "complex"), (6, "bool")}
_TYPES = {
    **{(code, dtype.bits): dtype for dtype in DTYPES.values() for code, kind in _KINDS if dtype.kind == kind},
    (2, 16): DTYPES["f16"],
    (4, 16): DTYPES["bf16"],
    (6, 8): DTYPES["i1"],
    (10, 8): DTYPES["f8E4M3FN"],
    (12, 8): DTYPES["f8E5M2"],
}
"""Types by DLPack's code and number of bits."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


@dataclass(frozen=True)
class Lent:
    """Memory that another library's array has lent; strides count elements. It is theirs for as long as `owner` lives.

    `device` is None for the processor, else the number of a GPU.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int | None
    owner: Any

    def numpy(self) -> np.ndarray:
        """An array on the same memory, which has to be the processor's."""
        return array_at(self.address, self.shape, self.strides, self.dtype.numpy, self.owner)


def lent(array: Any, stream: int | None = None) -> Lent:
    """The memory of any library's array. On a GPU, what that library has launched is waited for by the stream."""
    if isinstance(array, np.ndarray):
        return _of_numpy(cast(np.ndarray, array))
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array, stream)
    if (stated := getattr(array, "__cuda_array_interface__", None)) is not None:
        return _of_cuda(array, stated)
    return _of_numpy(np.asarray(array))


def _of_numpy(array: np.ndarray) -> Lent:
    dtype = dtype_of_numpy(array.dtype)
    if any(stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Lent(array.__array_interface__["data"][0], array.shape, strides, dtype, None, array)


def _of_dlpack(array: Any, stream: int | None) -> Lent:
    kind, number = array.__dlpack_device__()
    if kind not in (*_HOST_KINDS, *_DEVICE_KINDS):
        raise UnsupportedError(f"an array on DLPack's device {int(kind)}", hint="copy it to the CPU or to a GPU")
    on_device = kind in _DEVICE_KINDS
    capsule = array.__dlpack__(stream=stream) if on_device and stream is not None else array.__dlpack__()
    # The capsule is not taken over: when it goes, so does the loan.
    pointer = _pointer(capsule, _NAME)
    given = _Tensor.from_address(pointer)
    shape = tuple(given.shape[n] for n in range(given.ndim))
    strides = tuple(given.strides[n] for n in range(given.ndim)) if given.strides else row_major(shape)
    dtype = _TYPES.get((given.code, given.bits))
    if dtype is None or given.lanes != 1:
        raise DTypeError(f"DLPack's type {given.code} of {given.bits} bits and {given.lanes} lanes has no Weft type")
    address = (given.data or 0) + given.offset
    return Lent(address, shape, strides, dtype, int(number) if on_device else None, (array, capsule))


def _of_cuda(array: Any, stated: dict[str, Any]) -> Lent:
    dtype = dtype_of_numpy(np.dtype(stated["typestr"]))
    shape, steps = tuple(stated["shape"]), stated.get("strides")
    strides = row_major(shape) if steps is None else tuple(step // dtype.bytes for step in steps)
    return Lent(stated["data"][0] or 0, shape, strides, dtype, 0, array)


_NAME = b"dltensor"
_python: Any = ctypes.PYFUNCTYPE
_pointer = _python(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_new = _python(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(("PyCapsule_New", ctypes.pythonapi))
# Of a capsule that is being destroyed there must not be a reference.
_is_ours = _python(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_held = _python(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

_borrowed: dict[int, tuple[Any, ...]] = {}
"""What others have borrowed, by where its description lies: it stays until they say that they have done with it."""


@_DELETER
def _given_back(pointer: int) -> None:
    _borrowed.pop(pointer, None)


@_DESTRUCTOR
def _destroyed(capsule: int) -> None:
    if _is_ours(capsule, _NAME):  # nobody has taken it over
        _given_back(_held(capsule, _NAME))


def lend(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: int | None, owner: Any
) -> Any:
    """A capsule of DLPack's for memory that its owner keeps; `device` is None for the processor, else a GPU's."""
    codes = {known: code for code, known in reversed(_TYPES.items())}
    code, bits = codes[dtype]
    sizes, steps = ((ctypes.c_int64 * len(shape))(*each) for each in (shape, strides))
    kind, number = (CPU, 0) if device is None else (CUDA, device)
    tensor = _Tensor(address, kind, number, len(shape), code, bits, 1, sizes, steps, 0)
    managed = _Managed(tensor, None, _given_back)
    pointer = ctypes.addressof(managed)
    _borrowed[pointer] = managed, sizes, steps, owner
    return _new(pointer, _NAME, _destroyed)


class _Memory:
    """Bytes at an address, for NumPy, which holds on to this, and this to their owner."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


def array_at(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype, owner: Any = None
) -> np.ndarray:
    """An array of NumPy's on memory of the processor's, with strides in elements; it keeps the owner alive."""
    if 0 in shape:
        return np.empty(tuple(shape), dtype)
    # NumPy cannot stride over some of the types that it has from elsewhere, but over bytes.
    steps = (*(stride * dtype.itemsize for stride in strides), 1)
    memory: Any = _Memory(address, (*shape, dtype.itemsize), steps, owner)
    return np.asarray(memory).view(dtype)[..., 0]
