"""The host function launches what a tape says, with the right parameters, and reports which kernel failed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from weft.backends.nvidia.code import Launch, TensorMap
from weft.backends.nvidia.driver.libcuda import Driver
from weft.backends.nvidia.driver.modules import DeviceFunction, LaunchConfig
from weft.errors import DeviceError, GuardError, KernelFaultError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32
from weft.lower.steps import Buffer, KernelStep, Plan
from weft.ops.layouts import contiguous
from weft.runtime.cuda.device_program import (
    DeviceTape,
    device_launcher,
    launch_failure,
    launched_again,
    write_device_tape,
)

from ..fakes import LAUNCH, REPLACE, FakeLibrary

STREAM = 0x1234_5678_9ABC
DRIVER = Driver(FakeLibrary())


def function(name: str, handle: int, launch: Launch, resident: int = 0) -> DeviceFunction:
    return DeviceFunction(name, handle, launch, 32, 0, 0, resident)


def plan(*steps: KernelStep) -> Plan:
    tensor = Tensor(f32, (symbol("n"),))
    buffers = tuple(Buffer("input", tensor, contiguous(tensor)) for _ in range(3))
    return Plan("p", buffers, steps, (0, 1, 2), (), ("n",))


def step(name: str, buffers: tuple[int, ...], grid: Any = 4, symbols: tuple[str, ...] = (), serial: bool = False):
    return KernelStep(name, buffers, symbols, grid, 1, serial, name)


def launched(
    tape: DeviceTape, table: list[int], parameters: Mapping[int, int], fail_at: int = -1, maps: int = 0
) -> tuple[int, list[Any]]:
    """Run a tape with a function in the driver's place; returns its result and what each launch was given."""
    seen: list[Any] = []

    def record(config: int, handle: int, arguments: int, extra: int) -> int:
        launch = LaunchConfig.from_address(config)
        attributes = [
            (launch.attributes[i].id, tuple(launch.attributes[i].value[:3])) for i in range(launch.attribute_count)
        ]
        pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
        values = [ctypes.c_int64.from_address(pointers[i] or 0).value for i in range(parameters[handle])]
        if maps:
            slots = [pointers[parameters[handle] + i] or 0 for i in range(maps)]
            assert all(slot % 64 == 0 for slot in slots)
            values += [tuple((ctypes.c_int64 * 16).from_address(slot)) for slot in slots]
        seen.append((handle, tuple(launch.grid), tuple(launch.block), launch.shared, launch.stream, attributes, values))
        return 701 if len(seen) - 1 == fail_at else 0

    def replace(slot: int, address: int) -> int:
        ctypes.c_int64.from_address(slot).value = address
        return 0

    library = FakeLibrary()
    library.cuLaunchKernelEx, library.cuTensorMapReplaceAddress = LAUNCH(record), REPLACE(replace)
    words = np.array([*table, *[0] * 64], np.int64)
    return device_launcher(Driver(library))(tape.address, words.ctypes.data, STREAM), seen


def test_kernels_get_buffers_sizes_and_their_launch() -> None:
    functions = {"a": function("a", 11, Launch(128, 64)), "b": function("b", 12, Launch(256, 100_000))}
    made = plan(step("a", (0, 2), symbol("n"), ("n",)), step("b", (1, 1), 3))
    tape = write_device_tape(DRIVER, made, made.steps, {"n": 6}, functions)
    result, seen = launched(tape, [100, 200, 300, 6], {11: 3, 12: 2})
    assert result == 0
    assert seen == [
        (11, (6, 1, 1), (128, 1, 1), 64, STREAM, [], [100, 300, 6]),
        (12, (3, 1, 1), (256, 1, 1), 100_000, STREAM, [], [200, 200]),
    ]


def test_clusters_early_starts_and_loops_are_told_to_the_driver() -> None:
    functions = {
        "c": function("c", 1, Launch(128, 0, cluster=4, blocks_per_program=4)),
        "p": function("p", 2, Launch(128, 0, programmatic=True)),
        "both": function("both", 3, Launch(128, 0, cluster=2, blocks_per_program=2, programmatic=True)),
        "loops": function("loops", 4, Launch(128, 0, persistent=True), resident=264),
        "plain": function("plain", 5, Launch(128, 0)),
    }
    made = plan(*(step(name, (0,), 1000) for name in functions))
    tape = write_device_tape(DRIVER, made, made.steps, {"n": 1}, functions)
    _, seen = launched(tape, [100, 200, 300, 1], {1: 1, 2: 1, 3: 1, 4: 1, 5: 1})
    # Of an early start only the first word counts.
    told = [[(id_, value if id_ == 4 else value[0]) for id_, value in attributes] for *_, attributes, _ in seen]
    assert told == [[(4, (4, 1, 1))], [(6, 1)], [(4, (2, 1, 1)), (6, 1)], [], []]
    assert [grid[0] for _, grid, *_ in seen] == [4000, 1000, 2000, 264, 1000]


def test_serial_kernels_have_one_block_and_empty_ones_are_left_out() -> None:
    functions = {"s": function("s", 1, Launch(32, 0)), "e": function("e", 2, Launch(32, 0))}
    made = plan(step("e", (0,), symbol("n")), step("s", (0,), 50, serial=True))
    tape = write_device_tape(DRIVER, made, made.steps, {"n": 0}, functions)
    assert tape.kernels == ("s",)
    _, seen = launched(tape, [1, 2, 3, 0], {1: 1})
    assert [(handle, grid) for handle, grid, *_ in seen] == [(1, (1, 1, 1))]


def test_the_kernel_that_fails_is_named_and_nothing_is_launched_after_it() -> None:
    functions = {name: function(name, handle, Launch(32, 0)) for handle, name in enumerate(("a", "b", "c"), 1)}
    made = plan(*(step(name, (0,)) for name in functions))
    tape = write_device_tape(DRIVER, made, made.steps, {"n": 1}, functions)
    result, seen = launched(tape, [1, 2, 3, 1], {1: 1, 2: 1, 3: 1}, fail_at=1)
    assert len(seen) == 2
    error = launch_failure(Driver(FakeLibrary()), tape.kernels, result)
    assert isinstance(error, DeviceError) and "the kernel b cannot be launched: too many resources" in str(error)


def test_a_fault_names_the_kernels_that_may_have_done_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    driver = Driver(FakeLibrary())
    driver.launched.append(("first",))
    alone = launch_failure(driver, ("next",), 700)
    assert isinstance(alone, KernelFaultError) and "the kernel first failed: an illegal memory access" in str(alone)
    several = launch_failure(driver, ("second", "next"), (1 << 32) | 700)
    assert "second, first" in str(several) and "CUDA_LAUNCH_BLOCKING=1" in str(several)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert "the kernel next failed" in str(launch_failure(driver, ("second", "next"), (1 << 32) | 700))


def test_more_blocks_than_a_gpu_takes_are_refused() -> None:
    made = plan(step("a", (0,), 1 << 31))
    with pytest.raises(GuardError, match="2147483648 programs"):
        write_device_tape(DRIVER, made, made.steps, {"n": 1}, {"a": function("a", 1, Launch(32, 0))})


def test_tensor_maps_follow_the_other_parameters_with_the_address_of_the_call() -> None:
    n = symbol("n")
    maps = (TensorMap(1, "bf16", (64, n), (n * 8,), (64, 128)), TensorMap(0, "bf16", (n,), (), (64,)))
    functions = {"m": function("m", 1, Launch(128, 0, maps=maps))}
    made = plan(step("m", (0, 2)), step("m", (0, 2)))
    tape = write_device_tape(DRIVER, made, made.steps, {"n": 6}, functions)
    result, seen = launched(tape, [100, 200, 300, 6], {1: 2}, maps=2)
    assert result == 0
    assert seen[0] == seen[1]
    one, two, first, second = seen[0][-1]
    assert (one, two, first[0], second[0]) == (100, 300, 300, 100)
    # What the driver was told: type, rank, sizes, strides in bytes, box.
    assert DRIVER.library.maps[-2:] == [(9, 2, [64, 6], [96], [64, 128]), (9, 1, [6], [], [64])]
    assert first[1:3] == (9, 2) and second[1:3] == (9, 1)


def test_rows_that_the_copy_engine_cannot_read_are_refused() -> None:
    made = plan(step("m", (0, 1)))
    launch = Launch(128, 0, maps=(TensorMap(0, "bf16", (64, 2), (symbol("n"),), (64, 128)),))
    with pytest.raises(GuardError, match="6 bytes apart"):
        write_device_tape(DRIVER, made, made.steps, {"n": 3}, {"m": function("m", 1, launch)})


def test_a_thread_without_a_context_gets_the_devices() -> None:
    answers = iter((201, 0, 201, 201))
    library = FakeLibrary()
    library.cuLaunchKernelEx = LAUNCH(lambda *arguments: next(answers))
    driver = Driver(library)
    made = plan(step("a", (0,)))
    tape = write_device_tape(DRIVER, made, made.steps, {"n": 1}, {"a": function("a", 1, Launch(32, 0))})
    table = np.zeros(64, np.int64)
    call = tape.address, table.ctypes.data, STREAM

    def run() -> int:
        return launched_again(driver, 0, device_launcher(driver)(*call), *call)

    assert run() == 0
    assert library.calls.count("cuCtxSetCurrent") == 1
    assert run() == 201
