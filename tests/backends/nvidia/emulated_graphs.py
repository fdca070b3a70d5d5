"""A backend of `torch.compile` for tensors of the CPU: graphs are compiled for a GPU, their kernels run as PTX here.

What a GPU would leave to torch's libraries, torch does. Memory that kernels do not write holds a pattern, and accesses
outside of the tensors that a kernel is given are errors.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.compiled_graph import CompiledGraph
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.execution.alignment import aligned
from weft.frontends.torch.execution.reference import to_array, to_tensor
from weft.frontends.torch.execution.torch_executor import TorchExecutor
from weft.frontends.torch.importer.freezing import frozen_arguments, make_constants
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.ir.expr import evaluate
from weft.lower.steps import CallStep, DotStep, KernelStep, Step
from weft.pipelines import compile_nvidia
from weft.runtime.constant_sets import Preparing
from weft.runtime.constants import as_program, prepared_by
from weft.runtime.frame import Frame
from weft.runtime.program import Program
from weft.runtime.tape import Tape, size_place

from .ptx_clusters import run_clusters
from .ptx_machine import BASE, Memory, run_blocks
from .ptx_streams import run_streams

PATTERN = 0xA5
LINE = 256
"""Where in a line of memory a tensor begins is the same on the machine: alignment counts."""


class EmulatedProgram(Program):
    """A program for a GPU that is not there: its steps are kept as they are."""

    def is_apart(self, step: Step) -> bool:
        return isinstance(step, CallStep | DotStep)

    def write_tape(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Tape:
        return Tape(np.zeros(1, np.int64), tuple(steps), True)


class EmulatedExecutor(TorchExecutor[EmulatedProgram]):
    """Runs a program's kernels on the PTX machine."""

    def __init__(self, program: EmulatedProgram, opaque: OpaqueRuntime) -> None:
        super().__init__(program, opaque, torch.device("cpu"))

    def _preparing(self) -> Preparing:
        return lambda given: self._preparer(given, {})

    @cached_property
    def _preparer(self) -> EmulatedExecutor:
        function = prepared_by(self.executable.plan, self.executable.prepare)
        assert function is not None
        return executor_of(as_program(function), OpaqueRuntime({}), self.executable.code.arch)

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        def make(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            raw = torch.full((_extent(shape, strides) * dtype.itemsize + LINE,), PATTERN, dtype=torch.uint8)
            start = -raw.data_ptr() % LINE
            whole = raw[start : start + _extent(shape, strides) * dtype.itemsize].view(dtype)
            return whole.as_strided(shape, strides, whole.storage_offset())

        return make

    def _enter(self, frame: Frame) -> None:
        arena = torch.full((frame.binding.arena.size + LINE,), PATTERN, dtype=torch.uint8)
        frame.place_arena(arena, -(-arena.data_ptr() // LINE) * LINE)

    def _leave(self, frame: Frame) -> None:
        frame.arena = None
        frame.views.clear()  # they show the arena of this call

    def _fitting(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        return aligned(super()._fitting(tensor, strides))

    def _launch(self, tape: Tape, frame: Frame) -> None:
        for step in tape.steps:
            assert isinstance(step, KernelStep)
            self._run_kernel(step, frame)

    def _run_kernel(self, step: KernelStep, frame: Frame) -> None:
        plan, code, sizes = self.executable.plan, self.executable.code, frame.binding.sizes
        programs, launch = evaluate(step.grid, sizes), code.launches[step.function]
        assert not launch.persistent, "more than the machine knows"
        spans: dict[int, int] = {}
        for number in step.buffers:
            size = to_torch(plan.buffers[number].tensor.dtype).itemsize
            bytes_ = _extent(frame.binding.shapes[number], frame.binding.strides[number]) * size
            start = int(frame.table[number])
            spans[start] = max(spans.get(start, 0), bytes_)
        memory, there = Memory(), dict[int, tuple[int, np.ndarray]]()
        for start, bytes_ in spans.items():
            own = np.ctypeslib.as_array((ctypes.c_uint8 * bytes_).from_address(start))
            lead = start % LINE
            place = memory.add(np.concatenate([np.zeros(lead, np.uint8), own])) + lead
            memory.ranges[-1] = (place - BASE, place - BASE + bytes_)
            there[start] = place, own
        words = [there[int(frame.table[number])][0] for number in step.buffers]
        words += [int(frame.table[size_place(plan, name)]) for name in step.symbols]
        blocks = 1 if step.serial else programs
        given = code.ptx, step.function, launch.threads, launch.shared, memory, words
        if launch.cluster > 1:
            run_clusters(*given, launch.cluster, blocks)
        else:
            roles = "mbarrier" in code.modules[step.function]
            (run_streams if roles else run_blocks)(*given, blocks)
        for place, own in there.values():
            own[:] = memory.bytes[place - BASE : place - BASE + len(own)]


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first to the last; at least one, so that there is an address."""
    return 1 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def executor_of(function: Any, opaque: OpaqueRuntime, arch: str, config: Config | None = None) -> EmulatedExecutor:
    made = compile_nvidia(function, config or Config(cache=False), target_named(arch))
    assert isinstance(made.code, DeviceCode)
    return EmulatedExecutor(EmulatedProgram(made.plan, made.code, made.prepare), opaque)


def _compile(module: Any, inputs: Any, *, name: str, arch: str, config: Config, traced: Sequence[Any]) -> CompiledGraph:
    frozen = frozen_arguments(module, name, config, traced)
    imported = import_graph(module, name, config, frozen, target_named(arch).capabilities)
    executor = executor_of(imported.function, OpaqueRuntime(imported.objects), arch, config)
    make_constants(executor, [*map(frozen.get, imported.calling.arguments), *imported.constants])
    return CompiledGraph(imported.calling, imported.constants, executor)


def emulated(function: Callable[..., Any], arch: str = "sm_90a", **options: Any) -> Callable[..., Any]:
    """A function compiled for a GPU, forward and backward; the shapes are those of the first call."""
    torch.compiler.reset()
    config = Config.from_options({"cache": False, **options})
    return torch.compile(function, backend=partial(torch_backend, arch=arch, config=config), dynamic=False)


def torch_backend(module: Any, inputs: Sequence[Any], *, arch: str = "sm_90a", config: Config | None = None) -> Any:
    """The backend itself; with `run_graph` and `launch_kernel` it is what `weft fuzz --backend` takes a module for."""
    given = {"arch": arch, "config": config or Config(cache=False), "traced": inputs}
    made = aot_autograd(
        fw_compiler=partial(_compile, name="forward", **given),
        bw_compiler=partial(_compile, name="backward", **given),
        inference_compiler=partial(_compile, name="inference", **given),
        decompositions=decompositions("cuda"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return made(module, inputs)


def run_graph(function: Any, arrays: Sequence[np.ndarray], symbols: Mapping[str, int]) -> list[np.ndarray]:
    """The results of a graph function on the PTX machine."""
    tensors = [to_tensor(array) for array in arrays]
    return [to_array(result) for result in executor_of(function, OpaqueRuntime({}), "sm_90a")(tensors, symbols)]


def launch_kernel(kernel: Any, grid: int, arrays: Sequence[np.ndarray], numbers: Mapping[str, int]) -> None:
    """A kernel in Triton's language on the PTX machine."""
    sys.path.append(str(Path(__file__).parent))
    from emulation import emulate

    emulate(kernel, *arrays, grid=(grid,), **numbers)
