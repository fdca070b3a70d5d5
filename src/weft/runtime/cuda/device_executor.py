"""Runs compiled programs on arrays in a GPU's memory, whoever made them: a framework, or the driver alone.

Arenas and results come from the owner's allocator in every call, which hands the same blocks out again without waiting
for the GPU: what one program does not need at the moment is there for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from weft.lower.steps import CallStep, Plan, buffers_of
from weft.runtime.array_adapter import ArrayT
from weft.runtime.constant_sets import ConstantSet
from weft.runtime.cuda.device_program import DeviceProgram, DeviceTape
from weft.runtime.frame import Frame
from weft.runtime.plan_executor import PlanExecutor
from weft.runtime.program import Apart
from weft.runtime.tape import Tape

ALIGNMENT = 16
"""Bytes that addresses of arrays are multiples of: kernels read and write so many at a time."""


class DeviceServices(Protocol[ArrayT]):
    """What programs on a GPU need of whose memory they work on: a stream to launch on, and an allocator."""

    def stream(self) -> int:
        """The stream to launch on now, as the driver knows it."""
        ...

    def new(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> ArrayT:
        """An array in the GPU's memory, in the stream's order; its content is undefined."""
        ...

    def is_here(self, array: ArrayT) -> bool:
        """Whether an array lies in the GPU's memory."""
        ...

    def moved(self, array: ArrayT) -> ArrayT:
        """An array of the processor's memory as one in the GPU's."""
        ...

    def aligned(self, array: ArrayT) -> ArrayT:
        """The array, or a copy of it with the same strides in aligned memory."""
        ...

    def is_capturing(self) -> bool:
        """Whether what is launched now becomes part of a CUDA graph that someone else captures."""
        ...

    def synchronize(self) -> None:
        """Wait until what was launched has run."""
        ...

    def time(self, launch: Callable[[], None]) -> int:
        """The nanoseconds that what `launch` launches takes on the GPU."""
        ...


ON_HOST: tuple[int, ...] = (-1,)
"""Stands for the strides of an input that is not looked at."""

_CAPTURED: dict[int, tuple[DeviceProgram, dict[int, ConstantSet[Any]]]] = {}
"""Programs and constants of calls that someone captured as a CUDA graph: its launches need them where they are.

They go by their identities: many captures of one program keep it once.
"""


def _keep(program: DeviceProgram, sets: Sequence[ConstantSet[Any]]) -> None:
    _, kept = _CAPTURED.setdefault(id(program), (program, {}))
    kept.update({id(each): each for each in sets})


def host_inputs(plan: Plan, calls: Collection[str]) -> tuple[int, ...]:
    """The places of inputs that nothing but these calls reads."""
    read = {
        number
        for step in plan.steps
        if not (isinstance(step, CallStep) and step.target in calls)
        for number in buffers_of(step)
    }
    called = {number for step in plan.steps for number in buffers_of(step)}
    return tuple(place for place, number in enumerate(plan.inputs) if number in called - read)


def numbers_of_calls(plan: Plan) -> tuple[int, ...]:
    """The places of inputs of one element that nothing but calls reads: seeds of attention, in anybody's memory."""
    targets = {step.target for step in plan.steps if isinstance(step, CallStep)}
    return tuple(place for place in host_inputs(plan, targets) if not plan.buffers[plan.inputs[place]].tensor.shape)


class DeviceExecutor(PlanExecutor[DeviceProgram, ArrayT]):
    """A function compiled for a GPU."""

    services: DeviceServices[ArrayT]
    on_host: Collection[int] = ()
    """The places of inputs that may stay in the host's memory: calls copy them, or take them from where they are."""

    def plain(self, tensors: list[ArrayT], symbols: Mapping[str, int]) -> list[ArrayT]:
        """A call without a graph of its own, which empties the list."""
        results = super().consume(tensors, symbols)
        if self.services.is_capturing():
            _keep(self.executable, self.sets)
        return results

    def consume(self, tensors: list[ArrayT], symbols: Mapping[str, int]) -> list[ArrayT]:
        return self.plain(tensors, symbols)

    def stream(self) -> int:
        """The stream to launch on now."""
        return self.services.stream()

    def _is_here(self, tensor: ArrayT) -> bool:
        return self.services.is_here(tensor)

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Callable[..., ArrayT]:
        return self.services.new

    def _frame(self, symbols: Mapping[str, int]) -> Frame[ArrayT]:
        frame = super()._frame(symbols)
        for place in self.on_host:
            frame.inputs[place] = (frame.inputs[place][0], ON_HOST)
        return frame

    def _enter(self, frame: Frame[ArrayT]) -> None:
        if size := frame.binding.arena.size:
            arena = self._arena(size)
            frame.place_arena(arena, self._address(arena))

    def _leave(self, frame: Frame[ArrayT]) -> None:
        frame.arena = None
        frame.views.clear()

    def _launch(self, tape: Tape, frame: Frame[ArrayT]) -> None:
        assert isinstance(tape, DeviceTape)
        self.executable.launch(tape, frame.address, self.stream())

    def _finish(self) -> None:
        self.services.synchronize()

    def _launch_timed(self, tape: Tape, frame: Frame[ArrayT]) -> int:
        return self.services.time(lambda: self._launch(tape, frame))

    def _input(self, tensor: ArrayT, strides: tuple[int, ...]) -> ArrayT:
        if strides is ON_HOST:
            return tensor
        # A number in an array of the processor's may meet arrays of the GPU's.
        return self._fitting(tensor if self._is_here(tensor) else self.services.moved(tensor), strides)

    def _fitting(self, tensor: ArrayT, strides: tuple[int, ...]) -> ArrayT:
        return self.services.aligned(super()._fitting(tensor, strides))

    def _carry_out(self, step: Apart, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        super()._carry_out(step, frame, held)
        if isinstance(step, CallStep):
            for number in step.results:
                if number in held and not self._is_here(held[number]):
                    self._refuse_graphs(f"{step.target} gives a tensor in the processor's memory")

    def _refuse_graphs(self, reason: str) -> None:
        """Calls cannot be captured as graphs of their own."""
