"""Arrays of other libraries, by the protocols that all of them speak: DLPack, and CUDA's array interface.

NumPy reads DLPack too, but knows neither the types that machine learning has added nor memory of a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from weft.errors import DTypeError, UnsupportedError
from weft.ir.types import DTYPES, DType, bf16, boolean, dtype_of_numpy, f8e4m3, f8e5m2
from weft.runtime.array_address import address_of
from weft.runtime.strides import row_major

CPU, CUDA = 1, 2
_HOST_KINDS = (CPU, 3)
"""The processor's memory, and that part of it which a GPU can read as well."""
_DEVICE_KINDS = (CUDA, 13)
"""A GPU's memory, and memory that is managed for both."""

_KINDS = {"int": 0, "uint": 1, "float": 2, "complex": 5}
_OWN = {(4, 16): bf16, (6, 8): boolean, (10, 8): f8e4m3, (12, 8): f8e5m2}
"""Types that have codes of their own."""
_TYPES = _OWN | {
    (_KINDS[dtype.kind], dtype.bits): dtype
    for dtype in DTYPES.values()
    if dtype not in _OWN.values() and dtype.bits == 8 * dtype.bytes  # others pack what has less than a byte
}
"""Types by DLPack's code and number of bits."""
_CODES = {dtype: code for code, dtype in _TYPES.items()}

_VERSION = (1, 0)
"""The newest version of DLPack whose capsules are understood."""
_READ_ONLY = 1
"""DLPack's flag for memory that must not be written to."""


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


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class Borrower(Protocol):
    """A GPU that reads other libraries' memory on its default stream."""

    @property
    def device(self) -> int: ...

    def device_of(self, address: int) -> int:
        """The number of the GPU whose memory this is."""
        ...

    def wait_for(self, stream: int) -> None:
        """Let the default stream wait for what is on another one by now."""
        ...


@dataclass(frozen=True)
class Lent:
    """Memory that another library's array has lent; strides count elements. It is theirs for as long as `owner` lives.

    `device` is None for the processor, else the number of a GPU. What is `readonly`, or may be, is not to be written.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int | None
    owner: Any
    readonly: bool = False

    def numpy(self) -> np.ndarray:
        """An array on the same memory, which has to be the processor's."""
        return array_at(self.address, self.shape, self.strides, self.dtype.numpy, self.owner, self.readonly)


def lent(array: Any, stream: int | None = None, borrower: Borrower | None = None) -> Lent:
    """The memory of any library's array. On a GPU, what that library has launched is waited for by the stream.

    Arrays that state an address on some GPU are said to be on the first one if there is no borrower to find out.
    """
    if isinstance(array, np.ndarray):
        return _of_numpy(cast(np.ndarray, array))
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array, stream)
    if (stated := getattr(array, "__cuda_array_interface__", None)) is not None:
        return _of_cuda(array, stated, stream, borrower)
    return _of_numpy(np.asarray(array))


def _of_numpy(array: np.ndarray) -> Lent:
    dtype = dtype_of_numpy(array.dtype)
    if any(stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Lent(address_of(array), array.shape, strides, dtype, None, array, not array.flags.writeable)


def _of_dlpack(array: Any, stream: int | None) -> Lent:
    kind, number = array.__dlpack_device__()
    if kind not in (*_HOST_KINDS, *_DEVICE_KINDS):
        raise UnsupportedError(f"an array on DLPack's device {int(kind)}", hint="copy it to the CPU or to a GPU")
    on_device = kind in _DEVICE_KINDS
    wishes = {"stream": stream} if on_device and stream is not None else {}
    try:
        capsule = array.__dlpack__(**wishes, max_version=_VERSION)
    except TypeError:  # from before there were versions
        capsule = array.__dlpack__(**wishes)
    # The capsule is not taken over: when it goes, so does the loan.
    given, readonly = _described(capsule)
    shape = tuple(given.shape[n] for n in range(given.ndim))
    strides = tuple(given.strides[n] for n in range(given.ndim)) if given.strides else row_major(shape)
    dtype = _TYPES.get((given.code, given.bits))
    if dtype is None or given.lanes != 1:
        raise DTypeError(f"DLPack's type {given.code} of {given.bits} bits and {given.lanes} lanes has no Weft type")
    address = (given.data or 0) + given.offset
    return Lent(address, shape, strides, dtype, int(number) if on_device else None, (array, capsule), readonly)


def _described(capsule: Any) -> tuple[_Tensor, bool]:
    """What a capsule describes, and whether it must not be written to."""
    if not _is_named(capsule, _VERSIONED):
        # It cannot say that its memory is read-only, which that of an immutable array is.
        return _Tensor.from_address(_pointer(capsule, _NAME)), True
    given = _Versioned.from_address(_pointer(capsule, _VERSIONED))
    if given.major > _VERSION[0]:
        raise UnsupportedError(
            f"an array by DLPack {given.major}.{given.minor}", hint="update Weft, or copy it to an array of NumPy's"
        )
    return given.tensor, bool(given.flags & _READ_ONLY)


def _of_cuda(array: Any, stated: dict[str, Any], stream: int | None, borrower: Borrower | None) -> Lent:
    dtype = dtype_of_numpy(np.dtype(stated["typestr"]))
    shape, steps = tuple(stated["shape"]), stated.get("strides")
    strides = row_major(shape) if steps is None else tuple(step // dtype.bytes for step in steps)
    address, readonly = stated["data"]
    device = 0 if borrower is None else borrower.device
    if borrower is not None and address and 0 not in shape:
        device = borrower.device_of(address)
        theirs = stated.get("stream")
        if device == borrower.device and theirs is not None and theirs != stream:
            borrower.wait_for(theirs)
    return Lent(address or 0, shape, strides, dtype, device, array, bool(readonly))


_NAME, _VERSIONED = b"dltensor", b"dltensor_versioned"
_python: Any = ctypes.PYFUNCTYPE
_pointer = _python(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_new = _python(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(("PyCapsule_New", ctypes.pythonapi))
_is_named = _python(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
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
    if dtype not in _CODES:
        raise DTypeError(f"DLPack has no type for {dtype} with a byte for each", hint="convert it to 8 bits")
    code, bits = _CODES[dtype]
    sizes, steps = ((ctypes.c_int64 * len(shape))(*each) for each in (shape, strides))
    kind, number = (CPU, 0) if device is None else (CUDA, device)
    tensor = _Tensor(address, kind, number, len(shape), code, bits, 1, sizes, steps, 0)
    managed = _Managed(tensor, None, _given_back)
    pointer = ctypes.addressof(managed)
    _borrowed[pointer] = managed, sizes, steps, owner
    return _new(pointer, _NAME, _destroyed)


class _Memory:
    """Bytes at an address, for NumPy, which holds on to this, and this to their owner."""

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, readonly: bool
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, readonly),
            "shape": shape,
            "strides": strides,
        }


def array_at(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: np.dtype,
    owner: Any = None,
    readonly: bool = False,
) -> np.ndarray:
    """An array of NumPy's on memory of the processor's, with strides in elements; it keeps the owner alive."""
    if 0 in shape:
        return np.empty(tuple(shape), dtype)
    # NumPy cannot stride over some of the types that it has from elsewhere, but over bytes.
    steps = (*(stride * dtype.itemsize for stride in strides), 1)
    memory: Any = _Memory(address, (*shape, dtype.itemsize), steps, owner, readonly)
    return np.asarray(memory).view(dtype)[..., 0]
