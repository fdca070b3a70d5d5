"""Arrays in a GPU's memory by its driver alone: allocated, copied and lent to other libraries without a framework.

All work is on the default stream, which waits for, and is waited for by, the streams of other libraries that are made
as usual. Memory comes from the driver's own pool in the order of the stream: what a program no longer needs is there
for the next one without waiting.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.nvidia.driver.libcuda import Driver, driver
from weft.errors import UnsupportedError
from weft.ir.types import DType, dtype_of_numpy
from weft.runtime.array_adapter import ForeignCalls, NoForeignCalls
from weft.runtime.constant_sets import ConstantSet
from weft.runtime.constants import strided_zeros
from weft.runtime.cuda.device_executor import ALIGNMENT, DeviceExecutor
from weft.runtime.cuda.device_program import DeviceProgram
from weft.runtime.dlpack import CUDA, array_at, lend, lent
from weft.runtime.strides import lowest, row_major, span

_LEGACY_STREAM = 1
"""DLPack's name for the default stream."""
_RELEASE_THRESHOLD = 4
"""The pool's attribute that says how much memory it keeps between calls."""
_DEVICE_ORDINAL = 9
"""The attribute of an address that says which GPU's it is."""
_NO_TIMING = 2
"""The flag of an event that only puts things in order."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in a GPU's memory; strides count elements. Others read it by DLPack, or CUDA's array interface."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    memory: DeviceMemory
    owner: Any
    """What keeps it."""

    @property
    def device(self) -> int:
        """The number of the GPU."""
        return self.memory.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        steps = tuple(stride * self.dtype.itemsize for stride in self.strides)
        return {
            "version": 3,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "shape": self.shape,
            "strides": None if self.strides == row_major(self.shape) else steps,
            "stream": _LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **wishes: Any) -> Any:
        if stream not in (None, -1, _LEGACY_STREAM):  # other streams may not wait for the default one
            self.memory.synchronize()
        return lend(self.address, self.shape, self.strides, dtype_of_numpy(self.dtype), self.device, self.owner)

    def numpy(self) -> np.ndarray:
        """A copy in the processor's memory; waits for what computes it."""
        return self.memory.to_host(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)


class DeviceMemory:
    """A GPU's memory, by its driver: what the runtime asks of arrays there, of an allocator and of a stream."""

    def __init__(self, device: int = 0, given: Driver | None = None) -> None:
        self.device = device
        self.driver = given or driver()
        self.driver.context(device)

    # -- arrays ----------------------------------------------------------------------------------------------------

    def address(self, array: DeviceArray) -> int:
        return array.address

    def strides(self, array: DeviceArray) -> tuple[int, ...]:
        return array.strides

    def version(self, array: DeviceArray) -> int:
        return 0

    def shape(self, array: DeviceArray) -> Sequence[int]:
        return array.shape

    def count(self, array: DeviceArray) -> int:
        return int(np.prod(array.shape, dtype=np.int64))

    def itemsize(self, array: DeviceArray) -> int:
        return array.dtype.itemsize

    def is_on_host(self, array: DeviceArray) -> bool:
        return False

    def dtype(self, dtype: DType) -> np.dtype:
        return dtype.numpy

    def number(self, array: DeviceArray) -> int:
        return int(self.to_host(array))

    def in_memory(self, array: DeviceArray) -> DeviceArray:
        return array

    def alias(self, array: DeviceArray) -> DeviceArray:
        return self.view(array, array.shape, array.strides, 0)

    def cloned(self, array: DeviceArray) -> DeviceArray:
        made = self.new(array.shape, array.strides, array.dtype)
        size, before = _extent(array.shape, array.strides, array.dtype)
        if size:
            to, start = ctypes.c_uint64(made.address + before), ctypes.c_uint64(array.address + before)
            with self.driver.within(self.device):
                self.driver.call("cuMemcpyDtoDAsync_v2", to, start, ctypes.c_size_t(size), None)
        return made

    def copied(self, array: DeviceArray, strides: Sequence[int]) -> DeviceArray:
        # Rare: an argument in other strides than it was compiled for. Its elements go by way of the processor.
        copy = strided_zeros(array.shape, strides, array.dtype)
        copy[...] = self.to_host(array)
        return self._uploaded(copy, tuple(strides))

    def view(self, array: DeviceArray, shape: Sequence[int], strides: Sequence[int], offset: int) -> DeviceArray:
        start = array.address + offset * array.dtype.itemsize
        return DeviceArray(start, tuple(shape), tuple(strides), array.dtype, self, array.owner)

    def view_of_arena(
        self, arena: DeviceArray, start: int, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> DeviceArray:
        address = arena.address + start + offset * dtype.bytes
        return DeviceArray(address, tuple(shape), tuple(strides), dtype.numpy, self, arena.owner)

    def placed(self, array: DeviceArray) -> DeviceArray:
        return self.aligned(array)

    def to_host(self, array: DeviceArray) -> np.ndarray:
        size, before = _extent(array.shape, array.strides, array.dtype)
        memory = np.empty(max(size, 1), np.uint8)
        if size:
            target, start = ctypes.c_void_p(memory.ctypes.data), ctypes.c_uint64(array.address + before)
            doing = "an array cannot be copied"
            with self.driver.within(self.device):
                self.driver.call("cuMemcpyDtoH_v2", target, start, ctypes.c_size_t(size), doing=doing)
        return array_at(memory.ctypes.data - before, array.shape, array.strides, array.dtype, memory)

    def from_host(self, array: np.ndarray) -> DeviceArray:
        strides = tuple(stride // array.itemsize for stride in array.strides)
        if span(array.shape, strides) != array.size or any(stride < 0 for stride in strides):
            array = np.ascontiguousarray(array)
            strides = row_major(array.shape)
        return self._uploaded(array, strides)

    def _uploaded(self, array: np.ndarray, strides: tuple[int, ...]) -> DeviceArray:
        made = self.new(array.shape, strides, array.dtype)
        size, before = _extent(array.shape, strides, array.dtype)
        if size:
            start = ctypes.c_uint64(made.address + before)
            source = ctypes.c_void_p(array.__array_interface__["data"][0] + before)
            doing = "an array cannot be copied"
            with self.driver.within(self.device):
                self.driver.call("cuMemcpyHtoD_v2", start, source, ctypes.c_size_t(size), doing=doing)
        return made

    def multiply(self, a: DeviceArray, b: DeviceArray, out: DeviceArray, *, accumulates: bool = False) -> None:
        raise UnsupportedError("a product that a framework's library was to carry out", hint="compile it with `strict`")

    # -- a stream and an allocator ---------------------------------------------------------------------------------

    def stream(self) -> int:
        return 0

    def new(self, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> DeviceArray:
        size, before = _extent(shape, strides, dtype)
        block = _Block(self.driver, self.device, max(size, 1))
        return DeviceArray(block.address - before, tuple(shape), tuple(strides), dtype, self, block)

    def is_here(self, array: DeviceArray) -> bool:
        return True

    def moved(self, array: DeviceArray) -> DeviceArray:
        return array

    def aligned(self, array: DeviceArray) -> DeviceArray:
        return array if array.address % ALIGNMENT == 0 else self.cloned(array)

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        with self.driver.within(self.device):
            self.driver.call("cuCtxSynchronize", doing="a program has failed")

    def device_of(self, address: int) -> int:
        """The number of the GPU whose memory this is."""
        found, which = ctypes.c_int(), ctypes.c_int(_DEVICE_ORDINAL)
        asked = ctypes.byref(found), which, ctypes.c_uint64(address)
        with self.driver.within(self.device):
            self.driver.call("cuPointerGetAttribute", *asked, doing="an array's memory is of no GPU")
        return found.value

    def wait_for(self, stream: int) -> None:
        """Let the default stream wait for what is on another one by now."""
        with self.driver.within(self.device):
            event = ctypes.c_void_p(self.driver.handle("cuEventCreate", ctypes.c_uint(_NO_TIMING)))
            try:
                self.driver.call("cuEventRecord", event, ctypes.c_void_p(stream))
                self.driver.call("cuStreamWaitEvent", None, event, ctypes.c_uint(0))
            finally:
                self.driver.call("cuEventDestroy_v2", event)

    def time(self, launch: Callable[[], None]) -> int:
        begin, end = (self.driver.handle("cuEventCreate", ctypes.c_uint(0)) for _ in range(2))
        try:
            self.driver.call("cuEventRecord", ctypes.c_void_p(begin), None)
            launch()
            self.driver.call("cuEventRecord", ctypes.c_void_p(end), None)
            self.driver.call("cuEventSynchronize", ctypes.c_void_p(end))
            milliseconds = ctypes.c_float()
            events = ctypes.c_void_p(begin), ctypes.c_void_p(end)
            self.driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), *events)
            return int(milliseconds.value * 1e6)
        finally:
            for event in (begin, end):
                self.driver.call("cuEventDestroy_v2", ctypes.c_void_p(event))


def _extent(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> tuple[int, int]:
    """How many bytes an array reaches over, and where they begin, counted from its first element."""
    return span(shape, strides) * dtype.itemsize, lowest(shape, strides) * dtype.itemsize


class _Block:
    """Memory of the driver's pool, given back in the order of the stream when nothing refers to it any more."""

    def __init__(self, driver: Driver, device: int, size: int) -> None:
        found = ctypes.c_uint64()
        doing = f"{size} bytes of a GPU's memory cannot be had"
        with driver.within(device):
            if (id(driver), device) not in _KEEPING:
                _keep_memory(driver, device)
            driver.call("cuMemAllocAsync", ctypes.byref(found), ctypes.c_size_t(size), None, doing=doing)
        self.address = found.value
        weakref.finalize(self, _free, driver, driver.context(device), found.value).atexit = False


_KEEPING: set[tuple[int, int]] = set()
"""Drivers and devices whose pools were told to keep their memory."""


def _keep_memory(driver: Driver, device: int) -> None:
    """Let the pool of a device keep what is free: else it goes back to the system whenever someone waits."""
    handle = ctypes.c_int(driver.number("cuDeviceGet", ctypes.c_int(device)))
    pool, most = driver.handle("cuDeviceGetDefaultMemPool", handle), ctypes.c_uint64(2**64 - 1)
    driver.call("cuMemPoolSetAttribute", ctypes.c_void_p(pool), ctypes.c_int(_RELEASE_THRESHOLD), ctypes.byref(most))
    _KEEPING.add((id(driver), device))


def _free(driver: Driver, context: int, address: int) -> None:
    """Give memory back, in whatever thread, with whatever context, this comes; there is nobody to tell of results."""
    library = driver.library
    if library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)):
        return
    library.cuMemFreeAsync(ctypes.c_uint64(address), None)
    library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


class DriverExecutor(DeviceExecutor[DeviceArray]):
    """A function compiled for a GPU, with the driver alone. Arrays of the processor's are copied there."""

    def __init__(self, executable: DeviceProgram, calls: ForeignCalls[DeviceArray] | None = None) -> None:
        self.services = self.memory = DeviceMemory(executable.device, executable.driver)
        super().__init__(executable, calls or NoForeignCalls(), self.memory)
        self._bound: ConstantSet[DeviceArray] | None = None

    def __call__(self, tensors: Sequence[DeviceArray], symbols: Mapping[str, int]) -> list[DeviceArray]:
        with self.memory.driver.within(self.memory.device):
            return super().__call__(tensors, symbols)

    def freeze(self, given: Sequence[DeviceArray]) -> None:
        """Take these for the program's constants from now on, whatever it is called with."""
        self._bound = super().constants(given)

    def constants(self, given: Sequence[DeviceArray]) -> ConstantSet[DeviceArray]:
        return self._bound or super().constants(given)

    def borrow(self, value: Any, written: bool) -> tuple[DeviceArray, DType]:
        """Any library's array where the program can read it, or write to it, and the type of its elements."""
        if isinstance(value, DeviceArray) and value.device == self.memory.device:
            return value, dtype_of_numpy(value.dtype)
        found = lent(value, _LEGACY_STREAM, self.memory)
        if found.device is None:
            return self.memory.from_host(found.numpy()), found.dtype
        if found.device != self.memory.device:
            raise UnsupportedError(f"an array on the GPU {found.device}, not {self.memory.device}")
        array = DeviceArray(found.address, found.shape, found.strides, found.dtype.numpy, self.memory, found.owner)
        return (self.memory.cloned(array) if written and found.readonly else array), found.dtype
