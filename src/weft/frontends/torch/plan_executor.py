"""What executors on any device share: they place tensors in a table, run a plan's segments, and gather the results.

An executor of a device says how memory is made there and how a tape is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch

from weft.errors import GuardError
from weft.frontends.torch.device_checks import Watch
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.frozen import ConstantSet, Preparing, make_set
from weft.frontends.torch.graph import Calling
from weft.frontends.torch.opaque import OpaqueRuntime
from weft.frontends.torch.traced_steps import SingleSteps, is_traced, run_traced
from weft.ir.expr import evaluate
from weft.lower.steps import CallStep, DotStep, Place
from weft.runtime.profile import Profile, active_profile, single_steps
from weft.runtime.program import Binding, Program
from weft.runtime.tape import Tape

_MOST_SIZES = 8
"""Sets of sizes that memory is kept for."""

BoxedCall: TypeAlias = Callable[[list[Any]], list[Any]]
"""What AOTAutograd calls: with a list of arguments, which it empties."""

ProgramT = TypeVar("ProgramT", bound=Program)


class WrongData(Exception):
    """What a program checks of its data does not hold; its arguments are as they were."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Frame:
    """The memory of one running call: an arena, and the table of addresses with the launcher's scratch behind it.

    The last word of the table is for the number that says which check has failed, where nobody else takes it.

    `inputs` and `results` are those of the program, with the strides of the first and what makes a tensor for the
    second.
    """

    binding: Binding
    words: np.ndarray
    table: memoryview
    address: int
    inputs: list[tuple[int, tuple[int, ...]]]
    results: list[tuple[int, Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...], torch.dtype]]
    arena: torch.Tensor | None = None
    constants: ConstantSet | None = None
    views: dict[Place, torch.Tensor] = field(default_factory=dict[Place, torch.Tensor])
    single_steps: SingleSteps | None = None
    """The program's steps one by one, once a profiler has asked for them."""
    base: int = 0
    """Where in memory the temporaries begin."""

    def place_arena(self, arena: torch.Tensor, base: int) -> None:
        """Let temporaries lie in this arena, from the address `base` on."""
        self.arena = arena
        if base != self.base:
            offsets = self.binding.arena.offsets
            self.words[list(offsets)] = base + np.fromiter(offsets.values(), np.int64, len(offsets))
            self.base = base


class PlanExecutor(Generic[ProgramT]):
    """A compiled function as a callable on tensors; safe to call from several threads at once."""

    def __init__(self, executable: ProgramT, opaque: OpaqueRuntime, device: torch.device) -> None:
        plan = executable.plan
        self.executable = executable
        self.opaque = opaque
        self.device = device
        self.frames: dict[tuple[int, ...], list[Frame]] = {}
        self.inputs = plan.inputs
        self.fixed = plan.fixed
        self.taken = [place for place in range(len(plan.inputs) + len(plan.fixed)) if place not in plan.fixed]
        self.sets: list[ConstantSet] = []
        outputs = [n for n in dict.fromkeys(plan.outputs) if plan.buffers[n].role == "output"]
        self.allocated = [(n, to_torch(plan.buffers[n].tensor.dtype)) for n in outputs]
        self.returned = plan.outputs
        self.given = [
            position
            for position, number in enumerate(plan.outputs)
            if number in plan.inputs and position not in plan.replacing
        ]
        self.symbols = plan.symbols
        self.has_constants = bool(plan.fixed or plan.constants)

    def __call__(self, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> list[torch.Tensor]:
        key = tuple([symbols[name] for name in self.symbols]) if symbols else ()
        pool = self.frames.get(key)
        if pool is None:
            pool = self._pool(key)
        try:
            frame = pool.pop()
        except IndexError:
            frame = self._frame(symbols)
        held = self._run(frame, tensors)
        results = [held[number] for number in self.returned]
        for position in self.given:
            results[position] = results[position].clone()
        self._leave(frame)
        pool.append(frame)
        return results

    def direct(
        self,
        calling: Calling,
        constants: Sequence[torch.Tensor],
        otherwise: BoxedCall,
        watch: Watch | None = None,
    ) -> BoxedCall | None:
        """A callable that does what `otherwise` does, on a shorter way, for a call whose sizes are known.

        Whatever is out of the ordinary is left to `otherwise`; `constants` are those of the graph. `watch` is told what
        the program says of its data where nobody waits for it.
        """
        return None

    def release(self) -> None:
        """Give back what is kept between calls."""
        for pool in self.frames.values():
            pool.clear()

    def constants(self, given: Sequence[torch.Tensor]) -> ConstantSet:
        """The constants that the program makes of these tensors: made when it first meets them."""
        for known in self.sets:
            if known.is_of(given) and known.is_fresh(given):
                return known
        made = make_set(self.executable, given, self.device, self._preparing())
        self.sets = [known for known in self.sets if known.is_needed() and not known.is_of(given)] + [made]
        return made

    # -- what a device does in its own way -------------------------------------------------------------------------

    def _preparing(self) -> Preparing | None:
        """What computes constants on the device; None where the processor does."""
        return None

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        """What makes the tensors of a result, given their shape, strides and type."""
        raise NotImplementedError

    def _enter(self, frame: Frame) -> None:
        """Get a frame ready for a call: its arena above all."""
        raise NotImplementedError

    def _leave(self, frame: Frame) -> None:
        """Drop what a frame must not keep until the next call."""

    def _input(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """An input as the program takes it."""
        return self._fitting(tensor, strides)

    def _launch(self, tape: Tape, frame: Frame) -> None:
        """Run the steps of a tape."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Wait until what was launched has run, for a profile."""

    def _launch_timed(self, tape: Tape, frame: Frame) -> int | None:
        """Run the steps of a tape to their end; gives the device's nanoseconds where it has a clock of its own."""
        self._launch(tape, frame)
        self._finish()

    # -- what all do alike -----------------------------------------------------------------------------------------

    def _place_constants(self, frame: Frame, given: Sequence[torch.Tensor]) -> ConstantSet:
        constants = self.constants(given)
        if frame.constants is not constants:
            frame.words[constants.places] = constants.addresses
            frame.constants = constants
        return constants

    def _run(self, frame: Frame, tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run the program on tensors; returns those of its inputs, constants, results and calls, by their buffers."""
        self._enter(frame)
        table = frame.table
        held: dict[int, torch.Tensor] = {}
        if self.has_constants:
            constants = self._place_constants(frame, [tensors[place] for place in self.fixed])
            held.update(constants.tensors)
            tensors = [tensors[place] for place in self.taken]
        for (number, strides), tensor in zip(frame.inputs, tensors, strict=True):
            tensor = self._input(tensor, strides)
            if not (address := tensor.data_ptr()) and tensor.numel():
                tensor = self._input(in_memory(tensor), strides)
                address = tensor.data_ptr()
            held[number], table[number] = tensor, address
        for number, make, shape, strides, dtype in frame.results:
            held[number] = out = make(shape, strides, dtype)
            if not (address := out.data_ptr()) and out.numel():
                in_memory(out)
            table[number] = address
        if (profile := active_profile()) is not None:
            self._run_profiled(profile, frame, held)
        elif is_traced() and self.device.type == "cpu":
            self._run_traced(frame, held)
        else:
            self._run_segments(frame, held)
        return held

    def _run_segments(self, frame: Frame, held: dict[int, torch.Tensor]) -> None:
        deciding = frame.binding.deciding
        for step in frame.binding.segments:
            if isinstance(step, Tape):
                self._launch(step, frame)
            else:
                self._carry_out(step, frame, held)
            if step is deciding:
                self._decide(held)

    def _decide(self, held: Mapping[int, torch.Tensor]) -> None:
        """Raise before anything is written over, if the program has found its data to be wrong."""
        if code := int(held[self.returned[-1]]):
            raise WrongData(code)

    def _run_profiled(self, profile: Profile, frame: Frame, held: dict[int, torch.Tensor]) -> None:
        def launch(tape: Tape) -> int | None:
            nanoseconds = self._launch_timed(tape, frame)
            if deciding is not None and tape.steps[-1] is last:
                self._decide(held)
            return nanoseconds

        def call(step: CallStep | DotStep) -> None:
            self._carry_out(step, frame, held)
            self._finish()
            if step is deciding:
                self._decide(held)

        deciding = frame.binding.deciding
        last = deciding.steps[-1] if isinstance(deciding, Tape) else None

        self._finish()
        profile.run(self.executable, frame.binding, launch, call)

    def _run_traced(self, frame: Frame, held: dict[int, torch.Tensor]) -> None:
        if frame.single_steps is None:
            frame.single_steps = single_steps(self.executable, frame.binding)
        deciding = frame.binding.deciding
        last = deciding.steps[-1] if isinstance(deciding, Tape) else None

        def launch(tape: Tape) -> None:
            self._launch(tape, frame)
            if deciding is not None and tape.steps[-1] is last:
                self._decide(held)

        def call(step: CallStep | DotStep) -> None:
            self._carry_out(step, frame, held)
            if step is deciding:
                self._decide(held)

        run_traced(self.executable.plan.name, frame.single_steps, launch, call)

    def _pool(self, key: tuple[int, ...]) -> list[Frame]:
        """A place for the frames of new sizes. Those of the oldest sizes are given back: each has memory of its own."""
        frames = dict(list(self.frames.items())[1 - _MOST_SIZES :])
        pool = frames.setdefault(key, [])
        self.frames = frames  # a whole new one, as other threads may be here too: what one of them loses is made again
        return pool

    def _frame(self, symbols: Mapping[str, int]) -> Frame:
        binding = self.executable.bind(symbols)
        table = np.zeros(self.executable.words + self.executable.scratch + 1, np.int64)  # the last is for a verdict
        for place, number in binding.numbers.items():
            table[place] = number
        return Frame(
            binding,
            table,
            table.data,
            table.ctypes.data,
            [(number, binding.strides[number]) for number in self.inputs],
            [
                (number, self._maker(shape, strides, dtype), shape, strides, dtype)
                for number, dtype in self.allocated
                for shape, strides in ((binding.shapes[number], binding.strides[number]),)
            ],
        )

    def _fitting(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """The tensor with the strides the program was compiled for: they differ only if traced with others."""
        if tensor.stride() == strides:
            return tensor
        fits = all(n <= 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))
        if fits or tensor.numel() == 0:
            return tensor
        return self._copied(tensor, strides)

    def _copied(self, tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=self.device)
        return copy.copy_(tensor)

    def _carry_out(self, step: CallStep | DotStep, frame: Frame, held: dict[int, torch.Tensor]) -> None:
        """Let torch carry out a step."""
        if isinstance(step, DotStep):
            multiply(*(self._operand(place, frame, held) for place in (step.a, step.b, step.out)))
            return
        operands = [self._operand(place, frame, held) for place in step.operands]
        results = self.opaque.call(step.target, step.arguments, operands, frame.binding.sizes)
        for number, result in zip(step.results, results, strict=True):
            if result is None:
                continue
            result = self._fitting(result, frame.binding.strides[number])
            held[number] = result
            frame.table[number] = result.data_ptr()

    def _operand(self, place: Place, frame: Frame, held: dict[int, torch.Tensor]) -> torch.Tensor:
        sizes = frame.binding.sizes
        shape = [evaluate(size, sizes) for size in place.tensor.shape]
        strides = [evaluate(stride, sizes) for stride in place.layout.strides]
        offset = evaluate(place.layout.offset, sizes)
        base = held.get(place.buffer)
        if base is not None:
            if tuple(shape) == tuple(base.shape) and tuple(strides) == base.stride() and offset == 0:
                return base
            return base.as_strided(shape, strides, base.storage_offset() + offset)
        if place not in frame.views:
            arena, dtype = frame.arena, to_torch(place.tensor.dtype)
            assert arena is not None
            start = int(frame.table[place.buffer]) - arena.data_ptr()
            whole = arena[start : start + (arena.numel() - start) // dtype.itemsize * dtype.itemsize].view(dtype)
            frame.views[place] = whole.as_strided(shape, strides, whole.storage_offset() + offset)
        return frame.views[place]


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with elements, but no memory, as one that has some: zeros that are only said to be zeros."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    kind = "" if type(tensor) is torch.Tensor else f"{type(tensor).__name__} "
    raise GuardError(
        f"a {kind}tensor of shape {tuple(tensor.shape)} has no memory to compute on",
        hint="programs run on data: call the function itself, not the compiled one, under a fake tensor mode",
    )


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """A (batched) matrix product into a tensor's memory, by torch's library."""
    with torch.no_grad():
        if out.dim() == 2:
            torch.mm(a, b, out=out)
        elif out.dim() == 3:
            torch.bmm(a, b, out=out)
        else:
            torch.matmul(a, b, out=out)
