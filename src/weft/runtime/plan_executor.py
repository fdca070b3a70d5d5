"""What executors on any device share: they place arrays in a table, run a plan's segments, and gather the results.

An executor of a device says how memory is made there and how a tape is launched; an `ArrayAdapter` says what arrays
are, so that programs run on those of any framework, or of none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from weft.ir.types import boolean, u8
from weft.lower.steps import CallStep, DotStep, IfStep, LoopStep, all_steps
from weft.runtime.array_adapter import ArrayAdapter, ArrayT, ForeignCalls
from weft.runtime.bound_calls import BoundPlace, bind_call, bind_place
from weft.runtime.constant_sets import ConstantSet, Preparing, make_set
from weft.runtime.frame import Frame, SingleSteps
from weft.runtime.profile import Profile, active_profile, single_steps
from weft.runtime.program import Apart, ControlSegment, Program, Segment
from weft.runtime.tape import Tape, slice_step, slice_words, trip_count

_MOST_SIZES = 8
"""Sets of sizes that memory is kept for."""

ProgramT = TypeVar("ProgramT", bound=Program)


class WrongData(Exception):
    """What a program checks of its data does not hold; its arguments are as they were."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class PlanExecutor(Generic[ProgramT, ArrayT]):
    """A compiled function as a callable on arrays; safe to call from several threads at once."""

    def __init__(self, executable: ProgramT, opaque: ForeignCalls[ArrayT], arrays: ArrayAdapter[ArrayT]) -> None:
        plan = executable.plan
        self.executable = executable
        self.opaque = opaque
        self.arrays = arrays
        self._address, self._strides = arrays.address, arrays.strides
        self.frames: dict[tuple[int, ...], list[Frame[ArrayT]]] = {}
        self.inputs = plan.inputs
        self.fixed = plan.fixed
        self.taken = [place for place in range(len(plan.inputs) + len(plan.fixed)) if place not in plan.fixed]
        self.sets: list[ConstantSet[ArrayT]] = []
        outputs = [n for n in dict.fromkeys(plan.outputs) if plan.buffers[n].role == "output"]
        self.allocated = [(n, arrays.dtype(plan.buffers[n].tensor.dtype)) for n in outputs]
        self.returned = plan.outputs
        self.given = [
            position
            for position, number in enumerate(plan.outputs)
            if number in plan.inputs and position not in plan.replacing
        ]
        self.symbols = plan.symbols
        self.donated = plan.donated
        self.has_constants = bool(plan.fixed or plan.constants)

    def __call__(self, tensors: Sequence[ArrayT], symbols: Mapping[str, int]) -> list[ArrayT]:
        return self.consume(list(tensors), symbols)

    def consume(self, tensors: list[ArrayT], symbols: Mapping[str, int]) -> list[ArrayT]:
        """A call that empties the list it is given: an array is let go of as soon as the program has no use for it."""
        key = tuple([symbols[name] for name in self.symbols]) if symbols else ()
        pool = self.frames.get(key)
        if pool is None:
            pool = self._pool(key)
        try:
            frame = pool.pop()
        except IndexError:
            frame = self._frame(symbols)
        held = self._run(frame, tensors, empties=True)
        results = [held[number] for number in self.returned]
        for position in self.given:
            results[position] = self.arrays.cloned(results[position])
        self._leave(frame)
        pool.append(frame)
        return results

    def release(self) -> None:
        """Give back what is kept between calls."""
        for pool in self.frames.values():
            pool.clear()

    def constants(self, given: Sequence[ArrayT]) -> ConstantSet[ArrayT]:
        """The constants that the program makes of these tensors: made when it first meets them."""
        for known in self.sets:
            if known.is_current(given):
                return known
        made = make_set(self.executable, given, self.arrays, self._preparing())
        made = replace(made, unchanged=self._unchanged(given))
        self.sets = [known for known in self.sets if known.is_needed() and not known.is_of(given)] + [made]
        return made

    # -- what a device does in its own way -------------------------------------------------------------------------

    def _preparing(self) -> Preparing[ArrayT] | None:
        """What computes constants on the device; None where the processor does."""
        return None

    def _unchanged(self, given: Sequence[ArrayT]) -> Callable[[Sequence[ArrayT]], bool] | None:
        """What tells quickly that constants are the very arrays that were given, unchanged; None where nothing does."""
        return None

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Callable[..., ArrayT]:
        """What makes the arrays of a result, given their shape, strides and type."""
        raise NotImplementedError

    def _enter(self, frame: Frame[ArrayT]) -> None:
        """Get a frame ready for a call: its arena above all."""
        raise NotImplementedError

    def _leave(self, frame: Frame[ArrayT]) -> None:
        """Drop what a frame must not keep until the next call."""

    def _input(self, tensor: ArrayT, strides: tuple[int, ...]) -> ArrayT:
        """An input as the program takes it."""
        return self._fitting(tensor, strides)

    def _launch(self, tape: Tape, frame: Frame[ArrayT]) -> None:
        """Run the steps of a tape."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Wait until what was launched has run, for a profile."""

    def _launch_timed(self, tape: Tape, frame: Frame[ArrayT]) -> int | None:
        """Run the steps of a tape to their end; gives the device's nanoseconds where it has a clock of its own."""
        self._launch(tape, frame)
        self._finish()

    # -- what all do alike -----------------------------------------------------------------------------------------

    def _place_constants(self, frame: Frame[ArrayT], given: Sequence[ArrayT]) -> ConstantSet[ArrayT]:
        constants = self.constants(given)
        if frame.constants is not constants:
            frame.words[constants.places] = constants.addresses
            frame.constants = constants
        return constants

    def _run(self, frame: Frame[ArrayT], tensors: list[ArrayT], *, empties: bool = False) -> dict[int, ArrayT]:
        """Run the program on arrays; returns its results, by their buffers, and what else is there in the end."""
        table, arrays, address_of = frame.table, self.arrays, self._address
        held: dict[int, ArrayT] = {}
        given = tensors
        if self.has_constants:
            constants = self._place_constants(frame, [tensors[place] for place in self.fixed])
            held.update(constants.tensors)
            tensors = [tensors[place] for place in self.taken]
        array = None
        for (number, strides), array in zip(frame.inputs, tensors, strict=True):
            array = self._input(array, strides)
            if not (address := address_of(array)) and arrays.count(array):
                array = self._input(arrays.in_memory(array), strides)
                address = address_of(array)
            held[number], table[number] = array, address
        if empties:
            del array, tensors
            given.clear()
        profile = active_profile()
        if frame.binding.phases and profile is None:
            self._run_phases(frame, held)
            return held
        self._enter(frame)
        for number, *made in frame.results:
            self._make(number, made, table, held)
        if profile is not None:
            self._run_profiled(profile, frame, held)
        else:
            self._run_segments(frame, held)
        return held

    def _make(self, number: int, made: Sequence[Any], table: memoryview, held: dict[int, ArrayT]) -> None:
        """Make the array of a buffer: by what makes it, its shape, strides and type."""
        make, shape, strides, dtype = made
        held[number] = out = make(shape, strides, dtype)
        if not (address := self._address(out)) and self.arrays.count(out):
            self.arrays.in_memory(out)
        table[number] = address

    def _run_phases(self, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        """Run the segments with memory that is made when the first of them needs it and dropped when the last has."""
        binding, table = frame.binding, frame.table
        frame.base = 0  # the places of temporaries are overwritten
        if frame.makers is None:
            frame.makers = self._makers(frame)
        for step, phase in zip(binding.segments, binding.phases, strict=True):
            for number in phase.makes:
                self._make(number, frame.makers[number], table, held)
            arena = self._arena(phase.arena.size) if phase.arena.size else None
            if arena is not None:
                base = self._address(arena)
                for number, offset in phase.arena.offsets.items():
                    table[number] = base + offset
            if isinstance(step, Tape):
                self._launch(step, frame)
            else:
                self._carry_out(step, frame, held)
            arena = None  # before the next phase asks for memory
            if step is binding.deciding:
                self._decide(held)
            for number in phase.drops:
                held.pop(number, None)

    def _makers(self, frame: Frame[ArrayT]) -> dict[int, Sequence[Any]]:
        """What makes each result, and each temporary that several segments touch."""
        binding, buffers = frame.binding, self.executable.plan.buffers
        makers: dict[int, Sequence[Any]] = {number: made for number, *made in frame.results}
        for number in (n for phase in binding.phases for n in phase.makes if n not in makers):
            shape, strides = binding.shapes[number], binding.strides[number]
            dtype = self.arrays.dtype(buffers[number].tensor.dtype)
            makers[number] = (self._maker(shape, strides, dtype), shape, strides, dtype)
        return makers

    def _arena(self, size: int) -> ArrayT:
        """Memory for the temporaries of one segment."""
        return self._maker((size,), (1,), u8)((size,), (1,), self.arrays.dtype(u8))

    def _run_segments(self, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        deciding = frame.binding.deciding
        for step in frame.binding.segments:
            if isinstance(step, Tape):
                self._launch(step, frame)
            else:
                self._carry_out(step, frame, held)
            if step is deciding:
                self._decide(held)

    def _decide(self, held: Mapping[int, ArrayT]) -> None:
        """Raise before anything is written over, if the program has found its data to be wrong."""
        if code := self.arrays.number(held[self.returned[-1]]):
            raise WrongData(code)

    def _run_profiled(self, profile: Profile, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        def launch(tape: Tape) -> int | None:
            nanoseconds = self._launch_timed(tape, frame)
            if deciding is not None and tape.steps[-1] is last:
                self._decide(held)
            return nanoseconds

        def call(step: Apart) -> None:
            self._carry_out(step, frame, held)
            self._finish()
            if step is deciding:
                self._decide(held)

        deciding = frame.binding.deciding
        last = deciding.steps[-1] if isinstance(deciding, Tape) else None

        self._finish()
        profile.run(self.executable, frame.binding, launch, call)

    def _run_single_steps(
        self,
        frame: Frame[ArrayT],
        held: dict[int, ArrayT],
        run: Callable[[SingleSteps, Callable[[Tape], None], Callable[[Apart], None]], None],
    ) -> None:
        """Let `run` carry out the steps of a program one by one, by what launches a tape and what makes a call."""
        if frame.single_steps is None:
            frame.single_steps = single_steps(self.executable, frame.binding)
        deciding = frame.binding.deciding
        last = deciding.steps[-1] if isinstance(deciding, Tape) else None

        def launch(tape: Tape) -> None:
            self._launch(tape, frame)
            if deciding is not None and tape.steps[-1] is last:
                self._decide(held)

        def call(step: Apart) -> None:
            self._carry_out(step, frame, held)
            if step is deciding:
                self._decide(held)

        run(frame.single_steps, launch, call)

    def _pool(self, key: tuple[int, ...]) -> list[Frame[ArrayT]]:
        """A place for the frames of new sizes. Those of the oldest sizes are given back: each has memory of its own."""
        frames = dict(list(self.frames.items())[1 - _MOST_SIZES :])
        pool = frames.setdefault(key, [])
        self.frames = frames  # a whole new one, as other threads may be here too: what one of them loses is made again
        return pool

    def _frame(self, symbols: Mapping[str, int]) -> Frame[ArrayT]:
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

    def _fitting(self, tensor: ArrayT, strides: tuple[int, ...]) -> ArrayT:
        """The array with the strides the program was compiled for: they differ only if traced with others."""
        given = self._strides(tensor)
        if given == strides:
            return tensor
        shape = self.arrays.shape(tensor)
        if 0 in shape or all(n <= 1 or a == b for n, a, b in zip(shape, given, strides, strict=True)):
            return tensor
        return self.arrays.copied(tensor, strides)

    def _carry_out(self, step: Apart, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        """Let the framework carry out a step, or decide on what is inside of it."""
        if isinstance(step, ControlSegment):
            self._control(step, frame, held)
            return
        call = frame.calls.get(id(step))
        if call is None:
            call = frame.calls[id(step)] = bind_call(step, frame.binding, self.opaque, self.arrays)
        results = call.function([self._operand(place, frame, held) for place in call.operands])
        for (number, strides), result in zip(call.results, results, strict=True):
            if result is not None:
                held[number] = result = self._fitting(result, strides)
                frame.table[number] = self._address(result)

    def _control(self, segment: ControlSegment, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        """Run a branch, or turns, as buffers say that the device has filled."""
        step = segment.step
        if isinstance(step, IfStep):
            self._run_parts(segment.parts[0 if self._is_true(step.condition, frame, held) else 1], frame, held)
            return
        sizes = frame.binding.sizes
        turns, turn = trip_count(step, sizes), 0
        # Tapes read addresses; what the framework carries out reads arrays, and so does who decides on a branch.
        shown = any(isinstance(each, CallStep | DotStep | LoopStep | IfStep) for each in all_steps(step.body))
        wholes = (
            [(each, self._operand(bind_place(each.whole, sizes), frame, held)) for each in step.slices] if shown else []
        )
        for each in step.slices:
            _, place, whole, start = slice_words(each, sizes)
            frame.table[place] = frame.table[whole] + start
        while turn != turns and (step.condition < 0 or self._is_true(step.condition, frame, held)):
            for each, whole in wholes:
                stride = self._strides(whole)[0]
                offset = stride * (turn if each.direction > 0 else turns - 1 - turn)
                shape, strides = self.arrays.shape(whole)[1:], self._strides(whole)[1:]
                held[each.buffer] = self.arrays.view(whole, shape, strides, offset)
            self._run_parts(segment.parts[0], frame, held)
            for each in step.slices:
                frame.table[each.buffer] += slice_step(each, sizes)
            turn += 1
        for each in step.slices:
            held.pop(each.buffer, None)

    def _run_parts(self, parts: Sequence[Segment], frame: Frame[ArrayT], held: dict[int, ArrayT]) -> None:
        for part in parts:
            if isinstance(part, Tape):
                self._launch(part, frame)
            else:
                self._carry_out(part, frame, held)

    def _is_true(self, number: int, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> bool:
        """Whether the first element of a buffer is true; the rest of it, if there is any, is not the condition."""
        return bool(self.arrays.number(self._operand(BoundPlace(number, boolean, (), (), 0), frame, held)))

    def _operand(self, place: BoundPlace, frame: Frame[ArrayT], held: dict[int, ArrayT]) -> ArrayT:
        base = held.get(place.buffer)
        if base is not None:
            if self._strides(base) == place.strides and self.arrays.shape(base) == place.shape and not place.offset:
                return base
            return self.arrays.view(base, place.shape, place.strides, place.offset)
        view = frame.views.get(place)
        if view is None:
            assert frame.arena is not None
            start = int(frame.table[place.buffer]) - self._address(frame.arena)
            lies = place.dtype, place.shape, place.strides, place.offset
            view = frame.views[place] = self.arrays.view_of_arena(frame.arena, start, *lies)
        return view
