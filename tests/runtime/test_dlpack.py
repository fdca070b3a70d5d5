"""Memory that arrays lend each other: what is described is what is there, and it stays while it is borrowed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.errors import DTypeError, UnsupportedError
from weft.ir.types import DTYPES, boolean, dtype_of_numpy, f32
from weft.runtime import dlpack
from weft.runtime.dlpack import array_at, lend, lent
from weft.runtime.strides import row_major


class Block:
    """Memory that can be seen to go."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


class Lending:
    """An array of a library that speaks DLPack alone."""

    def __init__(self, array: np.ndarray, block: Any = None, device: int | None = None) -> None:
        self.array, self.block, self.device = array, block, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.device is None else (2, self.device)

    def __dlpack__(self, **wishes: Any) -> Any:
        strides = tuple(stride // self.array.itemsize for stride in self.array.strides)
        dtype = dtype_of_numpy(self.array.dtype)
        return lend(self.array.ctypes.data, self.array.shape, strides, dtype, self.device, self.block)


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.bits >= 8 or dtype == boolean])
def test_types_shapes_and_strides_come_through(name: str) -> None:
    array = np.arange(24).reshape(4, 6).astype(DTYPES[name].numpy)[::2, 1:]
    found = lent(Lending(array))
    assert (found.shape, found.strides, found.dtype, found.device) == ((2, 5), (12, 1), DTYPES[name], None)
    np.testing.assert_array_equal(found.numpy().view(np.uint8), np.ascontiguousarray(array).view(np.uint8))


def test_other_libraries_read_what_is_lent() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    borrowed = np.from_dlpack(Lending(array))
    np.testing.assert_array_equal(borrowed, array)
    assert borrowed.ctypes.data == array.ctypes.data


@pytest.mark.parametrize("reads", [np.from_dlpack, lambda lending: lent(lending).numpy(), lambda lending: None])
def test_memory_stays_as_long_as_it_is_borrowed(reads: Any) -> None:
    block = Block(np.arange(5, dtype=np.int64))
    gone = weakref.ref(block)
    lending = Lending(block.array, block)
    borrowed = reads(lending)
    del block, lending
    gc.collect()
    assert (gone() is None) is (borrowed is None)
    del borrowed
    gc.collect()
    assert gone() is None and not dlpack._borrowed


def test_memory_of_a_gpu_is_told_from_the_processors() -> None:
    found = lent(Lending(np.zeros(3, np.float32), device=1))
    assert found.device == 1 and found.dtype == f32


def test_what_has_no_type_or_place_here_is_refused() -> None:
    class Elsewhere(Lending):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0

    with pytest.raises(UnsupportedError, match="DLPack's device 8"):
        lent(Elsewhere(np.zeros(3)))
    with pytest.raises(DTypeError, match="has no Weft type"):
        lent(np.zeros(3, "datetime64[s]"))


def test_arrays_stand_on_any_memory() -> None:
    memory = np.arange(20, dtype=np.float32).astype(ml_dtypes.bfloat16)
    view = array_at(memory.ctypes.data + 4, (3, 2), (6, 1), memory.dtype, memory)
    np.testing.assert_array_equal(view.astype(np.float32), [[2, 3], [8, 9], [14, 15]])
    view[0, 0] = 7
    assert memory[2] == 7
    assert row_major((2, 3, 4)) == (12, 4, 1)
