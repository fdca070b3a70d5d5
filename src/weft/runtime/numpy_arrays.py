"""NumPy's arrays as the runtime sees them, and programs for the processor on them: what runs without a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import UnsupportedError
from weft.ir.types import DType, dtype_of_numpy
from weft.runtime.array_adapter import ForeignCalls, NoForeignCalls
from weft.runtime.array_address import address_of
from weft.runtime.constant_sets import ConstantSet, make_set
from weft.runtime.constants import strided_zeros
from weft.runtime.dlpack import array_at, lent
from weft.runtime.executable import Executable
from weft.runtime.frame import Frame
from weft.runtime.huge_pages import use_huge_pages
from weft.runtime.openmp import can_use_threads, default_threads, in_forked_child, stay_alone
from weft.runtime.plan_executor import PlanExecutor
from weft.runtime.program import Segment
from weft.runtime.tape import Tape

_ALIGNMENT = 64


def _strides(array: np.ndarray) -> tuple[int, ...]:
    size = array.itemsize
    return tuple([stride // size for stride in array.strides])


def _never_counted(array: np.ndarray) -> int:
    return 0


class NumpyArrays:
    """Arrays in the processor's memory."""

    address = staticmethod(address_of)
    strides = staticmethod(_strides)
    version = staticmethod(_never_counted)

    def shape(self, array: np.ndarray) -> Sequence[int]:
        return array.shape

    def count(self, array: np.ndarray) -> int:
        return array.size

    def itemsize(self, array: np.ndarray) -> int:
        return array.itemsize

    def is_on_host(self, array: np.ndarray) -> bool:
        return True

    def dtype(self, dtype: DType) -> np.dtype:
        return dtype.numpy

    def number(self, array: np.ndarray) -> int:
        return int(array)

    def in_memory(self, array: np.ndarray) -> np.ndarray:
        return array

    def alias(self, array: np.ndarray) -> np.ndarray:
        return array.view()

    def cloned(self, array: np.ndarray) -> np.ndarray:
        return self.copied(array, _strides(array))

    def copied(self, array: np.ndarray, strides: Sequence[int]) -> np.ndarray:
        copy = strided_zeros(array.shape, strides, array.dtype)
        copy[...] = array
        return copy

    def view(self, array: np.ndarray, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
        return array_at(address_of(array) + offset * array.itemsize, shape, strides, array.dtype, array)

    def view_of_arena(
        self, arena: np.ndarray, start: int, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> np.ndarray:
        return array_at(address_of(arena) + start + offset * dtype.bytes, shape, strides, dtype.numpy, arena)

    def placed(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def from_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def multiply(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, *, accumulates: bool = False) -> None:
        raise UnsupportedError(f"a product of {out.dtype} that a library was to carry out", hint="compile it anew")


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie as in memory that NumPy makes."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def new_array(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array with strides in elements; its content is undefined."""
    return np.empty(tuple(shape), dtype) if is_row_major(shape, strides) else strided_zeros(shape, strides, dtype)


def new_row_major(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """As `new_array`, where the strides are known to be those of rows."""
    return np.empty(shape, dtype)


class HostExecutor(PlanExecutor[Executable, np.ndarray]):
    """A function compiled for the processor, on NumPy's arrays. Arenas are kept between calls."""

    def __init__(
        self, executable: Executable, calls: ForeignCalls[np.ndarray] | None = None, threads: int | None = None
    ) -> None:
        super().__init__(executable, calls or NoForeignCalls(), NumpyArrays())
        self.threads = threads
        """How many threads kernels run in; by default as many as there are cores for, or OMP_NUM_THREADS says."""
        self._bound: ConstantSet[np.ndarray] | None = None

    def freeze(self, given: Sequence[np.ndarray], prepared: Mapping[int, np.ndarray] | None = None) -> None:
        """Take these for the program's constants from now on, whatever it is called with.

        Arrays of constant buffers that were `prepared` of them before take their place.
        """
        if prepared is None:
            self._bound = super().constants(given)
        else:
            self._bound = make_set(self.executable, given, self.arrays, prepared=prepared)

    @property
    def frozen(self) -> Mapping[int, np.ndarray] | None:
        """The arrays of constant buffers, once there are some."""
        return None if self._bound is None else self._bound.tensors

    def constants(self, given: Sequence[np.ndarray]) -> ConstantSet[np.ndarray]:
        return self._bound or super().constants(given)

    def borrow(self, value: Any, written: bool) -> tuple[np.ndarray, DType]:
        """Any library's array where the program can read it, or write to it, and the type of its elements."""
        if type(value) is np.ndarray and value.flags.c_contiguous and not written:
            return value, dtype_of_numpy(value.dtype)
        found = lent(value)
        if found.device is not None:
            raise UnsupportedError(f"an array on the GPU {found.device}", hint="copy it to the CPU")
        array = value if found.owner is value else found.numpy()
        return (array.copy() if written and not array.flags.writeable else array), found.dtype

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Callable[..., np.ndarray]:
        return new_row_major if is_row_major(shape, strides) else new_array

    def _enter(self, frame: Frame[np.ndarray]) -> None:
        if frame.arena is None:
            arena = np.empty(frame.binding.arena.size + _ALIGNMENT, np.uint8)
            address = address_of(arena)
            frame.place_arena(arena, -(-address // _ALIGNMENT) * _ALIGNMENT)
            use_huge_pages(address, arena.size)

    def launch(self, segment: Segment, frame: Frame[np.ndarray]) -> None:
        """Run a segment that is a tape, on a frame whose addresses are written."""
        assert isinstance(segment, Tape), "looked at when a call was planned"
        self._launch(segment, frame)

    def _launch(self, tape: Tape, frame: Frame[np.ndarray]) -> None:
        self.executable.launch(tape.address, frame.address, 1 if tape.alone else self._thread_count())

    def _thread_count(self) -> int:
        if not can_use_threads():
            if in_forked_child():
                stay_alone()
            return 1
        return self.threads or default_threads()
