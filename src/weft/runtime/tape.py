"""A plan with known sizes as tapes for the launcher: one for each run of steps between calls to the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.backends.cpu.blas import product_words
from weft.backends.cpu.launcher import ADDRESS, BRANCH, KERNEL, LOOP
from weft.forks import cached_property
from weft.ir.expr import Size, evaluate
from weft.lower.scalar_arguments import signed
from weft.lower.steps import (
    DotStep,
    IfStep,
    KernelStep,
    LaunchStep,
    LoopStep,
    Place,
    Plan,
    SlicePlace,
    Step,
    all_steps,
)

PARALLEL_FROM_NS = 30_000
"""Work that takes less than this is not worth waking a thread for."""


@dataclass(frozen=True)
class Tape:
    """Steps that run without Python between them."""

    words: np.ndarray
    steps: tuple[Step, ...]
    alone: bool
    """Whether the calling thread does all of it by itself."""
    inner: tuple[Tape, ...] = ()
    """The tapes that loops and branches of this one run."""

    @cached_property
    def address(self) -> int:
        return self.words.ctypes.data


def segments(plan: Plan, is_apart: Callable[[Step], bool]) -> list[tuple[Step, ...]]:
    """The plan's steps, cut at those that the framework carries out: runs of kernels, and such steps alone.

    They are also cut where it is known whether the data is right.
    """
    return cut_at(plan.steps, is_apart, plan.decided_after)


def cut_at(steps: Sequence[Step], is_apart: Callable[[Step], bool], place: int = 0) -> list[tuple[Step, ...]]:
    """Steps, cut at those that are apart, and before the one at a place."""
    result: list[tuple[Step, ...]] = []
    run: list[Step] = []
    for number, step in enumerate(steps):
        if number and number == place and run:
            result.append(tuple(run))
            run = []
        if not is_apart(step):
            run.append(step)
            continue
        if run:
            result.append(tuple(run))
        result.append((step,))
        run = []
    return [*result, tuple(run)] if run else result


def write_tape(plan: Plan, steps: Sequence[Step], sizes: Mapping[str, int], addresses: Mapping[str, int]) -> Tape:
    """The tape of a run of steps. `addresses` are those of kernels and BLAS routines."""
    written: list[list[int]] = []
    alone = True
    inner: list[Tape] = []
    for step in steps:
        match step:
            case LoopStep() if not step.body:
                continue
            case LoopStep():
                body = write_tape(plan, step.body, sizes, addresses)
                inner.append(body)
                written += [slice_words(each, sizes) for each in step.slices]
                moves = [word for each in step.slices for word in (each.buffer, slice_step(each, sizes))]
                turns = trip_count(step, sizes)
                written.append([LOOP, body.address, turns, step.condition, len(step.slices), *moves])
            case IfStep():
                branches = [write_tape(plan, branch, sizes, addresses) for branch in (step.then, step.otherwise)]
                inner += branches
                written.append([BRANCH, step.condition, *(branch.address for branch in branches)])
            case KernelStep():
                count = evaluate(step.grid, sizes)
                if count > 0:
                    parallel = not step.serial and count > 1 and count * step.work > PARALLEL_FROM_NS
                    alone &= not parallel
                    places = [*step.buffers, *(size_place(plan, name) for name in step.symbols)]
                    written.append([KERNEL, addresses[step.function], count, int(parallel), len(places), *places])
            case DotStep():
                alone = False
                written += product_words(step, sizes, addresses)
            case LaunchStep():
                count = evaluate(step.grid, sizes)
                if count > 0:
                    parallel = count > 1 and count * step.work > PARALLEL_FROM_NS
                    alone &= not parallel
                    own = _own_words(plan)
                    written += _starts(step, own, sizes)
                    places = [a.buffer if isinstance(a, Place) and a not in own else own[a] for a in step.arguments]
                    written.append([KERNEL, addresses[step.function], count, int(parallel), len(places), *places])
            case _:
                raise TypeError(step)
    words = [len(written), table_words(plan), *(word for each in written for word in each)]
    alone &= all(each.alone for each in inner)
    return Tape(np.array(words, np.int64), tuple(steps), alone, tuple(inner))


def trip_count(step: LoopStep, sizes: Mapping[str, int]) -> int:
    """How many turns a loop takes at most; -1 only for one that states no number, not for a size that is negative."""
    return step.trip_count if isinstance(step.trip_count, int) else max(evaluate(step.trip_count, sizes), 0)


def slice_words(place: SlicePlace, sizes: Mapping[str, int]) -> list[int]:
    """The step that finds the slice of a loop's first turn."""
    whole = place.whole
    first = 0 if place.direction > 0 else (evaluate(whole.tensor.shape[0], sizes) - 1) * slice_step(place, sizes)
    start = evaluate(whole.layout.offset, sizes) * whole.tensor.dtype.bytes - first
    return [ADDRESS, place.buffer, whole.buffer, start]


def slice_step(place: SlicePlace, sizes: Mapping[str, int]) -> int:
    """How many bytes on the slice of the next turn lies."""
    return evaluate(place.whole.layout.strides[0], sizes) * place.whole.tensor.dtype.bytes * place.direction


def size_place(plan: Plan, name: str) -> int:
    """Where in the table a size stands: after the buffers."""
    return len(plan.buffers) + plan.symbols.index(name)


def _own_words(plan: Plan) -> dict[Place | Size, int]:
    """The words of the table that kernels of the user's take: numbers, and the addresses of parts of buffers."""
    start = len(plan.buffers) + len(plan.symbols)
    words: dict[Place | Size, int] = {}
    for step in all_steps(plan.steps):
        if isinstance(step, LaunchStep):
            for argument in step.arguments:
                if not isinstance(argument, Place) or argument.layout.offset != 0:
                    words.setdefault(argument, start + len(words))
    return words


def _starts(step: LaunchStep, own: Mapping[Place | Size, int], sizes: Mapping[str, int]) -> list[list[int]]:
    """Steps that find out where the parts of buffers begin that a kernel takes."""
    return [
        [ADDRESS, own[each], each.buffer, evaluate(each.layout.offset, sizes) * each.tensor.dtype.bytes]
        for each in dict.fromkeys(step.places)
        if each in own
    ]


def numbers_of(plan: Plan, sizes: Mapping[str, int]) -> dict[int, int]:
    """The numbers that kernels of the user's take, by their places in the table."""
    return {
        place: signed(evaluate(argument, sizes))
        for argument, place in _own_words(plan).items()
        if not isinstance(argument, Place)
    }


def table_words(plan: Plan) -> int:
    """The length of the table: buffers, sizes, then what users' kernels take. The launcher's scratch lies behind it."""
    return len(plan.buffers) + len(plan.symbols) + len(_own_words(plan))


def scratch_words(plan: Plan) -> int:
    """The most arguments that a kernel of the plan takes."""
    kernels = (len(s.buffers) + len(s.symbols) for s in all_steps(plan.steps) if isinstance(s, KernelStep))
    launches = (len(s.arguments) for s in all_steps(plan.steps) if isinstance(s, LaunchStep))
    return max((*kernels, *launches), default=1)
