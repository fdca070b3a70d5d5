"""Runs compiled programs on torch tensors: allocates outputs and arenas, fills the table, calls the launchers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from weft.frontends.torch.checks import Check, failure
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.frozen import ConstantSet, make_set
from weft.frontends.torch.graph import Number, Output, Passed, Returned
from weft.frontends.torch.opaque import OpaqueRuntime
from weft.frontends.torch.outputs import ResultMemory, use_huge_pages
from weft.ir.expr import Expr, evaluate
from weft.lower.steps import CallStep, Place
from weft.runtime.executable import Binding, Executable
from weft.runtime.openmp import in_forked_child, pool_symbols
from weft.runtime.profile import Profile, active_profile
from weft.runtime.tape import Tape

_MOST_SIZES = 8
"""Sets of sizes that memory is kept for."""

BoxedCall: TypeAlias = Callable[[list[Any]], list[Any]]
"""What AOTAutograd calls: with a list of arguments, which it empties."""


@dataclass
class Frame:
    """The memory of one running call: an arena, and the table of addresses with the launcher's scratch behind it.

    The last word of the table is for the number that says which check has failed, where nobody else takes it.

    `inputs` and `results` are those of the program, with the strides of the first and what makes a tensor for the
    second; `steps` are calls, and the addresses of tapes.
    """

    binding: Binding
    arena: torch.Tensor
    words: np.ndarray
    table: memoryview
    address: int
    inputs: list[tuple[int, tuple[int, ...]]]
    results: list[tuple[int, Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...], torch.dtype]]
    steps: list[CallStep | int]
    constants: ConstantSet | None = None
    views: dict[Place, torch.Tensor] = field(default_factory=dict[Place, torch.Tensor])


class CpuExecutor:
    """A compiled function as a callable on tensors; safe to call from several threads at once."""

    def __init__(self, executable: Executable, opaque: OpaqueRuntime) -> None:
        plan = executable.plan
        self.executable = executable
        self.opaque = opaque
        self.frames: dict[tuple[int, ...], list[Frame]] = {}
        self.inputs = plan.inputs
        self.fixed = plan.fixed
        self.taken = [place for place in range(len(plan.inputs) + len(plan.fixed)) if place not in plan.fixed]
        self.sets: list[ConstantSet] = []
        outputs = [n for n in dict.fromkeys(plan.outputs) if plan.buffers[n].role == "output"]
        self.allocated = [(n, to_torch(plan.buffers[n].tensor.dtype)) for n in outputs]
        self.memory = ResultMemory()
        self.returned = plan.outputs
        self.given = [
            position
            for position, number in enumerate(plan.outputs)
            if number in plan.inputs and position not in plan.replacing
        ]
        self.symbols = plan.symbols
        self.launch = executable.launch
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
        table = frame.table
        held: dict[int, torch.Tensor] = {}
        if self.has_constants:
            constants = self._place_constants(frame, [tensors[place] for place in self.fixed])
            held.update(constants.tensors)
            tensors = [tensors[place] for place in self.taken]
        for (number, strides), tensor in zip(frame.inputs, tensors, strict=True):
            if tensor.stride() != strides:
                tensor = self._fitting(tensor, strides)
            held[number] = tensor
            table[number] = tensor.data_ptr()
        for number, make, shape, strides, dtype in frame.results:
            held[number] = out = make(shape, strides, dtype)
            table[number] = out.data_ptr()
        threads = _threads()
        if (profile := active_profile()) is not None:
            self._run_profiled(profile, frame, held, threads)
        else:
            for step in frame.steps:
                if isinstance(step, int):
                    self.launch(step, frame.address, threads)
                else:
                    self._call(step, frame, held)
        results = [held[number] for number in self.returned]
        for position in self.given:
            results[position] = results[position].clone()
        pool.append(frame)
        return results

    def direct(
        self, places: Sequence[int], outputs: tuple[Output, ...], checks: Sequence[Check], otherwise: BoxedCall
    ) -> BoxedCall | None:
        """A call of nothing but the launcher, for a program of known sizes that is one tape and gives new tensors.

        What small graphs compute takes less time than the way to it. `places` are those of the inputs among the
        arguments; whatever is out of the ordinary is left to `otherwise`.
        """
        unique = [number for number, _ in self.allocated] == list(self.returned)
        picked = [pick for output in outputs if (pick := _picked(output)) is not None]
        if self.symbols or not unique or len(picked) < len(outputs):
            return None
        (tape, *others) = self.executable.bind({}).segments or (None,)
        if others or not isinstance(tape, Tape):
            return None
        address, frames, launch = tape.address, self.frames.setdefault((), []), self.launch
        has_constants = self.has_constants
        fixed = [places[number] for number in self.fixed]
        taken = [places[number] for number in self.taken]
        count = len(self.returned) - (1 if checks else 0)
        as_made = outputs == tuple(map(Returned, range(count)))
        verdict = self.executable.words + self.executable.scratch

        def call(arguments: list[Any]) -> list[Any]:
            if active_profile() is not None:
                return otherwise(arguments)
            try:
                frame = frames.pop()
            except IndexError:
                frame = self._frame({})
            table = frame.table
            constants = self._place_constants(frame, [arguments[place] for place in fixed]) if has_constants else None
            for place, (number, strides) in zip(taken, frame.inputs, strict=True):
                tensor = arguments[place]
                if tensor.stride() != strides:
                    frames.append(frame)
                    return otherwise(arguments)
                table[number] = tensor.data_ptr()
            results: list[torch.Tensor] = []
            for number, make, shape, strides, dtype in frame.results[:count]:
                result = make(shape, strides, dtype)
                table[number] = result.data_ptr()
                results.append(result)
            if checks:
                table[frame.results[count][0]] = frame.address + 8 * verdict
            launch(address, frame.address, 1 if tape.alone else _threads())
            del constants  # another thread may have put newer ones in their place: they had to live until here
            code = table[verdict] if checks else 0
            frames.append(frame)
            if code:
                raise failure(checks, code)
            outputs = results if as_made else [pick(results, arguments) for pick in picked]
            arguments.clear()
            return outputs

        call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return call

    def release(self) -> None:
        """Give back what is kept between calls: arenas, and the memory of results that nobody holds."""
        for pool in self.frames.values():
            pool.clear()
        self.memory.release()

    def _place_constants(self, frame: Frame, given: Sequence[torch.Tensor]) -> ConstantSet:
        constants = self.constants(given)
        if frame.constants is not constants:
            frame.words[constants.places] = constants.addresses
            frame.constants = constants
        return constants

    def constants(self, given: Sequence[torch.Tensor]) -> ConstantSet:
        """The constants that the program makes of these tensors: made when it first meets them."""
        for known in self.sets:
            if known.is_of(given) and known.is_fresh(given):
                return known
        made = make_set(self.executable, given)
        self.sets = [known for known in self.sets if known.is_needed() and not known.is_of(given)] + [made]
        return made

    def _run_profiled(self, profile: Profile, frame: Frame, held: dict[int, torch.Tensor], threads: int) -> None:
        profile.run(
            self.executable,
            frame.binding,
            lambda tape: self.launch(tape.address, frame.address, threads),
            lambda step: self._call(step, frame, held),
        )

    def _pool(self, key: tuple[int, ...]) -> list[Frame]:
        """A place for the frames of new sizes. Those of the oldest sizes are given back: each has memory of its own."""
        frames = dict(list(self.frames.items())[1 - _MOST_SIZES :])
        pool = frames.setdefault(key, [])
        self.frames = frames  # a whole new one, as other threads may be here too: what one of them loses is made again
        return pool

    def _frame(self, symbols: Mapping[str, int]) -> Frame:
        binding = self.executable.bind(symbols)
        arena = torch.empty(binding.arena.size + 64, dtype=torch.uint8)
        start = -arena.data_ptr() % 64
        table = np.zeros(self.executable.words + self.executable.scratch + 1, np.int64)  # the last is for a verdict
        for buffer, offset in binding.arena.offsets.items():
            table[buffer] = arena.data_ptr() + start + offset
        for place, number in binding.numbers.items():
            table[place] = number
        use_huge_pages(arena.data_ptr(), arena.numel())
        return Frame(
            binding,
            arena,
            table,
            table.data,
            table.ctypes.data,
            [(number, binding.strides[number]) for number in self.inputs],
            [
                (number, self.memory.maker(shape, strides, dtype), shape, strides, dtype)
                for number, dtype in self.allocated
                for shape, strides in ((binding.shapes[number], binding.strides[number]),)
            ],
            [step if isinstance(step, CallStep) else step.address for step in binding.segments],
        )

    def _fitting(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """The tensor with the strides the program was compiled for: they differ only if traced with others."""
        fits = all(n <= 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))
        if fits or tensor.numel() == 0:
            return tensor
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
        return copy.copy_(tensor)

    def _call(self, step: CallStep, frame: Frame, held: dict[int, torch.Tensor]) -> None:
        operands = [self._operand(place, frame, held) for place in step.operands]
        results = self.opaque.call(step.target, step.arguments, operands, frame.binding.sizes)
        for number, result in zip(step.results, results, strict=True):
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
            dtype = to_torch(place.tensor.dtype)
            start = int(frame.table[place.buffer]) - frame.arena.data_ptr()
            whole = frame.arena[start : start + (frame.arena.numel() - start) // dtype.itemsize * dtype.itemsize].view(
                dtype
            )
            frame.views[place] = whole.as_strided(shape, strides, whole.storage_offset() + offset)
        return frame.views[place]


def _picked(output: Output) -> Callable[[Sequence[Any], Sequence[Any]], Any] | None:
    """What gives an output, of results and arguments, if it is one of them as it is, or always the same."""
    match output:
        case Returned(result, False):
            return lambda results, _: results[result]
        case Passed(argument):
            return lambda _, arguments: arguments[argument]
        case Number(value) if not isinstance(value, Expr):
            return lambda _, __: value
        case _:
            return None


def _threads() -> int:
    if not in_forked_child():
        return torch.get_num_threads() if pool_symbols() else 1
    if torch.get_num_threads() > 1:
        # The libraries that programs call cannot use the parent's pool either: they would wait for it for ever.
        torch.set_num_threads(1)
    return 1
