"""Graphs on a GPU by the driver alone: memory, copies and launches, with the PTX machine in the GPU's place."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from weft.backends.nvidia.driver import libcuda as driver_module
from weft.backends.nvidia.driver.libcuda import Driver
from weft.backends.nvidia.driver.modules import LaunchConfig
from weft.config import Config
from weft.errors import DeviceMemoryError, UnsupportedError, WeftError
from weft.frontends.text import compile_text
from weft.lower.steps import KernelStep
from weft.runtime.cuda import cubins, device_program
from weft.runtime.cuda.device_arrays import DeviceArray
from weft.targets import nvidia

from ..fakes import LAUNCH, FakeLibrary
from ..ptx_machine import BASE, Memory, run_blocks

TEXT = """
"graph.func"() ({
^bb0(%x: tensor<6x40xf32>, %b: tensor<40xf32>):
  %0 = "graph.add"(%x, %b) : (tensor<6x40xf32>, tensor<40xf32>) -> tensor<6x40xf32>
  %1 = "graph.max"(%0) {dims = [1 : i64], keep = true} : (tensor<6x40xf32>) -> tensor<6x1xf32>
  %2 = "graph.sub"(%0, %1) : (tensor<6x40xf32>, tensor<6x1xf32>) -> tensor<6x40xf32>
  %3 = "graph.exp"(%2) : (tensor<6x40xf32>) -> tensor<6x40xf32>
  "graph.return"(%3) : (tensor<6x40xf32>) -> ()
}) {sym_name = "f", arg_names = ["x", "b"]} : () -> ()
"""
LINE = 256
OTHERS = 55
"""The context of another GPU, which someone else has made current."""


class Machine(FakeLibrary):
    """A driver whose memory is the processor's, and whose kernels run on the PTX machine."""

    def __init__(self, **results: int) -> None:
        super().__init__(**results)
        self.blocks: dict[int, tuple[int, Any]] = {}
        self.program: Any = None
        self.cuLaunchKernelEx = LAUNCH(self.launch)
        self.copies = 0
        self.contexts = [OTHERS]
        """The stack of this thread's contexts."""
        self.owner = 0
        """The GPU that has all memory."""
        self.waited: list[int] = []

    def do_cuCtxGetCurrent(self, out: Any) -> int:
        out._obj.value = self.contexts[-1]
        return 0

    def do_cuCtxSetCurrent(self, context: Any) -> int:
        self.contexts[-1] = context.value
        return 0

    def do_cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.contexts.append(context.value)
        return 0

    def do_cuCtxPopCurrent_v2(self, out: Any) -> int:
        out._obj.value = self.contexts.pop()
        return 0

    def do_cuPointerGetAttribute(self, out: Any, which: Any, address: Any) -> int:
        out._obj.value = self.owner if which.value == 9 else -1
        return 0

    def do_cuEventRecord(self, event: Any, stream: Any) -> int:
        self.waited.append(stream.value)
        return 0

    def do_cuMemAllocAsync(self, out: Any, size: Any, stream: Any) -> int:
        assert self.contexts[-1] != OTHERS
        memory = ctypes.create_string_buffer(b"\xa5" * (size.value + LINE))
        out._obj.value = -(-ctypes.addressof(memory) // LINE) * LINE
        self.blocks[out._obj.value] = size.value, memory
        return 0

    def do_cuMemFreeAsync(self, address: Any, stream: Any) -> int:
        assert self.contexts[-1] != OTHERS
        del self.blocks[address.value]
        return 0

    def _copy(self, target: Any, source: Any, size: Any, *stream: Any) -> int:
        assert self.contexts[-1] != OTHERS
        ctypes.memmove(target.value, source.value, size.value)
        self.copies += 1
        return 0

    do_cuMemcpyHtoD_v2 = do_cuMemcpyDtoH_v2 = do_cuMemcpyDtoDAsync_v2 = _copy

    def launch(self, config: int, handle: int, arguments: int, extra: int) -> int:
        assert self.contexts[-1] != OTHERS
        names = {each.handle: name for name, each in self.program.functions.items()}
        (step,) = (s for s in self.program.plan.steps if isinstance(s, KernelStep) and s.function == names[handle])
        pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
        memory, words, own = Memory(), list[int](), list[tuple[int, np.ndarray]]()
        for number in range(len(step.buffers)):
            address = ctypes.c_int64.from_address(pointers[number] or 0).value
            (block,) = (start for start, (size, _) in self.blocks.items() if start <= address < start + size)
            held = np.ctypeslib.as_array(
                (ctypes.c_uint8 * (self.blocks[block][0] - address + block)).from_address(address)
            )
            words.append(memory.add(held.copy()))
            own.append((words[-1], held))
        launch, told = self.program.code.launches[step.function], LaunchConfig.from_address(config)
        given = self.program.code.ptx, step.function, launch.threads, launch.shared, memory, words
        run_blocks(*given, told.grid[0])
        for place, held in own:
            held[:] = memory.bytes[place - BASE : place - BASE + len(held)]
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    library = Machine()
    made = Driver(library)
    monkeypatch.setattr(driver_module, "driver", lambda: made)
    monkeypatch.setattr(device_program, "driver", lambda: made)
    for module in (nvidia, device_program):
        monkeypatch.setattr(module, "device_facts", lambda number: made.facts(number))
    return library


def _function(machine: Machine, **given: Any) -> Any:
    function = compile_text(TEXT, config=Config(cache=False), device="cuda", **given)
    machine.program = function.executor.executable
    return function


def _arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((6, 40), (40,)))
    wide = x.astype(np.float64) + b
    return x, b, np.exp(wide - wide.max(1, keepdims=True))


def test_arrays_of_the_processors_go_there_and_results_come_back(machine: Machine) -> None:
    function = _function(machine)
    x, b, expected = _arrays()
    (found,) = function(x, b)
    assert isinstance(found, DeviceArray) and found.shape == (6, 40)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)
    del found
    assert len(machine.blocks) == 0


def test_results_are_arguments_again_without_a_copy(machine: Machine) -> None:
    function = _function(machine, constants={"b": np.zeros(40, np.float32)})
    x, _, _ = _arrays()
    (once,) = function(x)
    copies = machine.copies
    (twice,) = function(once)
    assert machine.copies == copies
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(twice.numpy(), np.exp(exact - 1), rtol=1e-5)


def test_other_libraries_lend_and_borrow_by_cudas_interface(machine: Machine) -> None:
    function = _function(machine)
    x, b, expected = _arrays()
    there = function.executor.memory.from_host(x)

    class Theirs:
        __cuda_array_interface__ = there.__cuda_array_interface__

    (found,) = function(Theirs(), b)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    lent = found.__cuda_array_interface__
    assert lent["shape"] == (6, 40) and lent["typestr"] == "<f4" and lent["strides"] is None
    assert lent["data"] == (found.address, False)


def test_strides_that_do_not_fit_are_copied(machine: Machine) -> None:
    function = _function(machine)
    x, b, expected = _arrays()
    (found,) = function(np.asfortranarray(x), b)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_memory_that_runs_out_is_an_error_that_says_how_much(machine: Machine) -> None:
    function = _function(machine)
    machine.results["cuMemAllocAsync"] = 2
    x, b, _ = _arrays()
    with pytest.raises(DeviceMemoryError, match="960 bytes of a GPU's memory"):
        function(x, b)


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(WeftError, match="no device is called 'gpu'"):
        compile_text(TEXT, device="gpu")


def test_a_call_of_a_framework_is_refused(machine: Machine) -> None:
    function = _function(machine)
    with pytest.raises(UnsupportedError, match="aten::svd is a call to the framework"):
        function.executor.opaque.bound("aten::svd", "", {})


class Theirs:
    """An array of a library that speaks CUDA's interface alone."""

    def __init__(self, array: Any, **stated: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **stated}


def test_read_only_memory_is_copied_where_it_would_be_written(machine: Machine) -> None:
    executor = _function(machine).executor
    there = executor.memory.from_host(np.arange(12, dtype=np.float32))
    for readonly, written in ((True, True), (True, False), (False, True)):
        found, _ = executor.borrow(Theirs(there, data=(there.address, readonly)), written)
        assert (found.address != there.address) is (readonly and written)
        np.testing.assert_array_equal(found.numpy(), np.arange(12))


def test_negative_strides_reach_before_the_first_element(machine: Machine) -> None:
    function = _function(machine)
    x, b, expected = _arrays()
    memory = function.executor.memory
    there = memory.from_host(np.ascontiguousarray(x[::-1, ::-1]))
    turned = memory.view(there, x.shape, (-40, -1), x.size - 1)
    np.testing.assert_array_equal(turned.numpy(), x)
    del there
    copy = memory.cloned(turned)
    np.testing.assert_array_equal(copy.numpy(), x)
    (block,) = (start for start in machine.blocks if start <= copy.address < start + x.nbytes)
    assert copy.address - block == x.nbytes - 4
    (found,) = function(Theirs(turned), b)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_cudas_interface_is_asked_for_its_stream_and_its_gpu(machine: Machine) -> None:
    executor = _function(machine).executor
    there = executor.memory.from_host(np.zeros(4, np.float32))
    for stream in (None, 1, 0x1234):
        executor.borrow(Theirs(there, stream=stream), False)
    assert machine.waited == [0x1234] and machine.calls.count("cuStreamWaitEvent") == 1
    machine.owner = 1
    with pytest.raises(UnsupportedError, match="on the GPU 1, not 0"):
        executor.borrow(Theirs(there, stream=0x1234), False)
    assert machine.waited == [0x1234]


def test_the_contexts_of_other_peoples_threads_stay(machine: Machine) -> None:
    function = _function(machine)
    assert machine.contexts == [OTHERS]  # loading has put back what was current
    x, b, expected = _arrays()
    (found,) = function(x, b)
    assert machine.contexts == [OTHERS]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    found.memory.synchronize()
    del found
    assert machine.contexts == [OTHERS] and not machine.blocks
    machine.results["cuMemAllocAsync"] = 2
    with pytest.raises(DeviceMemoryError):
        function(x, b)
    assert machine.contexts == [OTHERS]


def test_loading_gives_a_thread_without_a_context_the_gpus(machine: Machine) -> None:
    machine.contexts[:] = [0]
    function = _function(machine)
    (own,) = machine.contexts
    assert own == 77  # the primary context of the fake driver's device
    x, b, expected = _arrays()
    np.testing.assert_allclose(function(x, b)[0].numpy(), expected, rtol=1e-5)


def test_code_that_is_refused_leaves_the_context_as_it_was(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubins, "_resident", {})
    machine.results["cuLibraryLoadData"] = 218
    with pytest.raises(WeftError):
        _function(machine)
    assert machine.contexts == [OTHERS]


def test_kernels_that_are_loaded_early_leave_the_context_as_it_was(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = _function(machine).executor.executable.code
    made = driver_module.driver()
    monkeypatch.setattr(cubins, "driver", lambda: made)
    monkeypatch.setattr(cubins, "device_facts", lambda number: made.facts(number))
    monkeypatch.setattr(cubins, "_resident", {})
    before = machine.calls.count("cuLibraryLoadData")
    early = cubins.EarlyLoader(0, None)
    for name, launch in code.launches.items():
        early(name, code.modules[name], launch)
    assert machine.contexts == [OTHERS]
    assert machine.calls.count("cuLibraryLoadData") == before + len(code.launches)


def test_strides_of_a_copy_may_be_negative(machine: Machine) -> None:
    memory = _function(machine).executor.memory
    x, _, _ = _arrays()
    copy = memory.copied(memory.from_host(x), (-40, -1))
    assert copy.strides == (-40, -1)
    np.testing.assert_array_equal(copy.numpy(), x)
