"""Launches of kernels in Triton's language: what the driver is told, and what is kept between launches."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.backends.nvidia.code import DeviceCode, Launch, TensorMap, argument_name
from weft.backends.nvidia.driver.libcuda import Driver
from weft.backends.nvidia.driver.modules import DeviceFunction, LaunchConfig
from weft.errors import DeviceError
from weft.frontends.triton.builders.tile_builder import Argument
from weft.frontends.triton.errors import KernelValueError
from weft.frontends.triton.runtime import device_compiled
from weft.frontends.triton.runtime.device_compiled import DeviceKernel, DeviceKernelCode
from weft.ir.expr import symbol
from weft.ir.types import f32, i32
from weft.runtime.cuda.device_program import MOST_BLOCKS

from ..fakes import LAUNCH, FakeLibrary

STREAM = 0x1234_5678_9ABC
ARGUMENTS = (Argument(f32, pointer=True), Argument(i32), Argument(f32))


class Launches:
    """A driver that notes launches: blocks, stream, and the words of arguments and grid."""

    def __init__(self, result: int = 0) -> None:
        self.seen: list[Any] = []
        self.result = result
        self.library = FakeLibrary()
        self.library.cuLaunchKernelEx = LAUNCH(self._note)
        self.driver = Driver(self.library)

    def _note(self, config: int, handle: int, arguments: int, extra: int) -> int:
        launch = LaunchConfig.from_address(config)
        pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
        address, *words = (ctypes.c_int64.from_address(pointers[i] or 0).value for i in range(len(ARGUMENTS) + 4))
        scale = ctypes.c_float.from_address(pointers[2] or 0).value
        self.seen.append((launch.grid[0], launch.stream, address, words[0] & 0xFFFFFFFF, scale, words[2:]))
        return self.result


def kernel(monkeypatch: pytest.MonkeyPatch, launches: Launches, launch: Launch, resident: int = 0) -> DeviceKernel:
    function = DeviceFunction("k", 11, launch, 32, 0, 0, resident)
    monkeypatch.setattr(device_compiled, "driver", lambda: launches.driver)
    monkeypatch.setattr(device_compiled, "device_facts", lambda device: None)
    monkeypatch.setattr(device_compiled, "load_code", lambda *parts: SimpleNamespace(functions={"k": function}))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    code = DeviceKernelCode("k", ARGUMENTS, (), DeviceCode("sm_90a", {}, {"k": launch}))
    return DeviceKernel(code, 0, None)


def test_arguments_grid_and_stream_are_told_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    made = kernel(monkeypatch, launches, Launch(128, 0))
    made.launch((6, 5, 4), [100, 7, 0.5])
    made.launch((1, 1, 1), [200, 8, 1.5])
    assert launches.seen == [(120, STREAM, 100, 7, 0.5, [0, 4, 5, 6]), (1, STREAM, 200, 8, 1.5, [0, 1, 1, 1])]
    assert list(launches.driver.launched) == [("k",), ("k",)]


def test_grids_of_nothing_and_of_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    made = kernel(monkeypatch, launches, Launch(128, 0))
    made.launch((6, 0, 4), [100, 7, 0.5])
    with pytest.raises(KernelValueError, match=f"a grid of {MOST_BLOCKS + 1} programs"):
        made.launch((MOST_BLOCKS + 1, 1, 1), [100, 7, 0.5])
    made.launch((MOST_BLOCKS, 1, 1), [100, 7, 0.5])
    assert [blocks for blocks, *_ in launches.seen] == [MOST_BLOCKS]


def test_a_kernel_that_loops_over_programs_has_as_many_blocks_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    made = kernel(monkeypatch, launches, Launch(128, 0, persistent=True), resident=132)
    made.launch((1000, 1, 1), [100, 7, 0.5])
    made.launch((7, 1, 1), [100, 7, 0.5])
    assert [blocks for blocks, *_ in launches.seen] == [132, 7]


def test_tensor_maps_are_made_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    maps = (TensorMap(0, "f32", (64, symbol(argument_name(1))), (256,), (32, 8)),)
    made = kernel(monkeypatch, launches, Launch(128, 0, maps=maps))
    for rows in (16, 24, 16, 24):
        made.launch((3, 1, 1), [4096, rows, 0.5])
    assert [sizes for _, _, sizes, *_ in launches.library.maps] == [[64, 16], [64, 24]]


def test_what_the_driver_refuses_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel(monkeypatch, Launches(701), Launch(128, 0))
    with pytest.raises(DeviceError, match="the kernel k cannot be launched"):
        made.launch((3, 1, 1), [100, 7, 0.5])
