"""Memory that arrays lend each other: what is described is what is there, and it stays while it is borrowed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.config import Config
from weft.errors import DTypeError, UnsupportedError
from weft.frontends.text import compile_text
from weft.ir.types import DTYPES, boolean, dtype_of_numpy, f8e4m3, f8e5m2, f32, i4
from weft.runtime import dlpack
from weft.runtime.dlpack import array_at, lend, lent
from weft.runtime.strides import row_major

REPLACING = """
"graph.func"() ({
^bb0(%s: tensor<8xf32>):
  %0 = "graph.add"(%s, %s) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  "graph.return"(%0) : (tensor<8xf32>) -> ()
}) {sym_name = "f", arg_names = ["s"], replaced = [[0 : i64, 0 : i64]]} : () -> ()
"""


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


class Versioned:
    """An array of a library that speaks DLPack of any version, as NumPy does."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **wishes: Any) -> Any:
        return self.array.__dlpack__(**wishes)


class Old(Versioned):
    """One of a library from before there were versions."""

    def __dlpack__(self, stream: int | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize(
    "lends, writeable, taken", [(Versioned, True, True), (Versioned, False, False), (Old, True, False)]
)
def test_only_memory_that_may_be_written_is(lends: type[Versioned], writeable: bool, taken: bool) -> None:
    state = np.arange(8, dtype=np.float32)
    state.flags.writeable = writeable
    assert lent(lends(state)).readonly is not taken and lent(lends(state)).numpy().flags.writeable is taken
    (found,) = compile_text(REPLACING, config=Config(cache=False))(lends(state))
    np.testing.assert_array_equal(found, np.arange(8) * 2)
    np.testing.assert_array_equal(state, np.arange(8) * (2 if taken else 1))


@pytest.mark.parametrize("lends", [Versioned, Old])
def test_loans_of_all_versions_end(lends: type[Versioned]) -> None:
    array = np.arange(3).view(type("Array", (np.ndarray,), {}))
    gone = weakref.ref(array)
    found = lent(lends(array)).numpy()
    del array
    gc.collect()
    assert gone() is not None and found[2] == 2
    del found
    gc.collect()
    assert gone() is None


def test_a_version_that_is_not_known_is_refused() -> None:
    class Newer(Versioned):
        def __dlpack__(self, **wishes: Any) -> Any:
            capsule = self.array.__dlpack__(**wishes)
            dlpack._Versioned.from_address(dlpack._pointer(capsule, b"dltensor_versioned")).major = 2
            return capsule

    with pytest.raises(UnsupportedError, match=r"DLPack 2\.0"):
        lent(Newer(np.zeros(3)))


@pytest.mark.parametrize("dtype, code", [(boolean, (6, 8)), (f8e4m3, (10, 8)), (f8e5m2, (12, 8)), (f32, (2, 32))])
def test_types_are_stated_as_others_know_them(dtype: Any, code: tuple[int, int]) -> None:
    capsule = Lending(np.ones(4, dtype.numpy)).__dlpack__()
    tensor = dlpack._Tensor.from_address(dlpack._pointer(capsule, b"dltensor"))
    assert (tensor.code, tensor.bits) == code


def test_bools_are_read_by_others() -> None:
    np.testing.assert_array_equal(np.from_dlpack(Lending(np.array([True, False]))), [True, False])


@pytest.mark.parametrize("code", [(0, 4), (1, 4), (2, 8), (6, 1)])
def test_types_that_lie_otherwise_are_refused(code: tuple[int, int]) -> None:
    class Other(Lending):
        def __dlpack__(self, **wishes: Any) -> Any:
            capsule = super().__dlpack__()
            tensor = dlpack._Tensor.from_address(dlpack._pointer(capsule, b"dltensor"))
            tensor.code, tensor.bits = code
            return capsule

    with pytest.raises(DTypeError, match="has no Weft type"):
        lent(Other(np.zeros(4, np.int8)))


def test_four_bits_are_not_lent() -> None:
    with pytest.raises(DTypeError, match="no type for i4") as error:
        lend(0, (1,), (1,), i4, None, None)
    assert error.value.hint
