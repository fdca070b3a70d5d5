"""Runs compiled programs on torch tensors in a GPU's memory, on torch's current stream.

Arenas and results come from torch's caching allocator in every call, which hands the same blocks out again without
waiting for the GPU: what one program does not need at the moment is there for all others, and for torch.
"""

# torch leaves what its own compiler uses private.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import torch
from torch._C._dynamo.guards import _empty_strided_cuda  # `torch.empty_strided` in a third of the time

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.target import NvidiaTarget, target_of_capability
from weft.config import Config
from weft.errors import DeviceMemoryError
from weft.frontends.torch.capture.host_copies import FROM_HOST
from weft.frontends.torch.execution.alignment import aligned
from weft.frontends.torch.execution.arrays import TorchArrays
from weft.frontends.torch.execution.cuda_direct import direct_call
from weft.frontends.torch.execution.device_checks import Watch
from weft.frontends.torch.execution.graph_services import TorchGraphs
from weft.frontends.torch.execution.torch_executor import BoxedCall, TorchExecutor
from weft.frontends.torch.importer.imported_graph import Calling
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.pipelines import compile_nvidia
from weft.runtime.cache import DiskCache
from weft.runtime.constant_sets import Preparing
from weft.runtime.constants import as_program, prepared_by
from weft.runtime.cuda.cuda_graphs import GraphedCalls
from weft.runtime.cuda.device_executor import ALIGNMENT, DeviceExecutor, host_inputs, numbers_of_calls
from weft.runtime.cuda.device_program import DeviceProgram, DeviceTape
from weft.runtime.frame import Frame
from weft.runtime.tape import Tape


def nvidia_target(device: torch.device) -> NvidiaTarget:
    """What code is made for on a device that is there."""
    facts = torch.cuda.get_device_properties(device)
    return target_of_capability(facts.major, facts.minor, facts.multi_processor_count)


def load_program(
    plan: Plan, code: DeviceCode, prepare: FuncOp | None = None, *, device: int = 0, cache: DiskCache | None = None
) -> DeviceProgram:
    """The program on a GPU. Where memory is short, torch is asked for what it keeps in reserve."""
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # torch's context is there from now on
        try:
            return DeviceProgram(plan, code, prepare, device=device, cache=cache)
        except DeviceMemoryError:
            torch.cuda.empty_cache()
        try:
            return DeviceProgram(plan, code, prepare, device=device, cache=cache)
        except DeviceMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from error


class TorchDevice:
    """A GPU as torch has it: its current stream, and its caching allocator."""

    def __init__(self, arrays: TorchArrays, index: int) -> None:
        self.arrays, self.index = arrays, index

    def stream(self) -> int:
        """The stream that torch works on now, as the driver knows it."""
        return torch._C._cuda_getCurrentRawStream(self.index)

    def new(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return _empty_strided_cuda(shape, strides, dtype)

    def is_here(self, array: torch.Tensor) -> bool:
        """Whether a tensor is in a GPU's memory: then it is in this one's, as tracing has guarded."""
        return array.is_cuda

    def moved(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self.arrays.device)

    def aligned(self, array: torch.Tensor) -> torch.Tensor:
        return aligned(array)

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def time(self, launch: Callable[[], None]) -> int:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)


class CudaExecutor(DeviceExecutor[torch.Tensor], TorchExecutor[DeviceProgram]):
    """A function compiled for a GPU. With `cuda_graphs`, calls that gain by it are captured and replayed.

    `written` and `guarded` are what `GraphedCalls` knows of results and inputs.
    """

    def __init__(
        self,
        executable: DeviceProgram,
        opaque: OpaqueRuntime,
        *,
        cuda_graphs: bool = True,
        written: Mapping[int, int] = MappingProxyType({}),
        guarded: bool = False,
    ) -> None:
        TorchExecutor.__init__(self, executable, opaque, torch.device("cuda", executable.device))
        self.index, self.guarded = executable.device, guarded
        self.on_host = {*host_inputs(executable.plan, FROM_HOST), *numbers_of_calls(executable.plan)}
        self.services = TorchDevice(self.tensors, executable.device)
        self.graphs = GraphedCalls(self, TorchGraphs(), written, guarded) if cuda_graphs else None

    def consume(self, tensors: list[torch.Tensor], symbols: Mapping[str, int]) -> list[torch.Tensor]:
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                return self.consume(tensors, symbols)
        if self.graphs is not None and not symbols and (results := self.graphs.call(tensors)) is not None:
            return results
        return self.plain(tensors, symbols)

    def direct(
        self,
        calling: Calling,
        constants: Sequence[torch.Tensor],
        otherwise: BoxedCall,
        watch: Watch | None = None,
    ) -> BoxedCall | None:
        return direct_call(self, calling, constants, otherwise, watch)

    def release(self) -> None:
        super().release()
        if self.graphs is not None:
            self.graphs.release()

    def _preparing(self) -> Preparing[torch.Tensor]:
        return self._prepare

    def _prepare(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute constants by kernels made for it: what they are made of may be gigabytes, and is here already."""
        return self._preparer(given, {})

    @cached_property
    def _preparer(self) -> CudaExecutor:
        """Kept for the next set of weights: layers that share a program have one each."""
        function = prepared_by(self.executable.plan, self.executable.prepare)
        assert function is not None
        compiled = compile_nvidia(as_program(function), Config(), nvidia_target(self.device))
        program = load_program(compiled.plan, compiled.code, device=self.index, cache=self.executable.cache)
        return CudaExecutor(program, OpaqueRuntime({}), cuda_graphs=False)

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        return _empty_strided_cuda

    # What follows is as in the class above, on a shorter way: it is part of every launch.

    def stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self.index)

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def _input(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        if not tensor.is_cuda and not tensor.shape and torch.cuda.is_current_stream_capturing():
            return self.services.moved(tensor)  # what is captured reads the GPU's memory alone
        if tensor.is_cuda and tensor.stride() == strides and tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        return super()._input(tensor, strides)

    def _fitting(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        if tensor.stride() == strides and tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        return super()._fitting(tensor, strides)

    def _enter(self, frame: Frame[torch.Tensor]) -> None:
        if size := frame.binding.arena.size:
            arena = _empty_strided_cuda((size,), (1,), torch.uint8)
            frame.place_arena(arena, arena.data_ptr())

    def _launch(self, tape: Tape, frame: Frame[torch.Tensor]) -> None:
        assert isinstance(tape, DeviceTape)
        try:
            self.executable.launch(tape, frame.address, self.stream())
        except DeviceMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from error

    def _refuse_graphs(self, reason: str) -> None:
        if self.graphs is not None:
            self.graphs.refuse(reason)
