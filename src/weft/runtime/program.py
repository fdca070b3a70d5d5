"""A program whose code is loaded, on whatever device: its memory's layout for each set of sizes, and its constants.

The framework's front end allocates: inputs and outputs are its tensors, and so are the arenas. This module speaks
addresses and sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from weft.ir.expr import evaluate
from weft.lower.steps import CallStep, ControlStep, DotStep, IfStep, LoopStep, Plan, Step
from weft.ops.graph import FuncOp
from weft.runtime.constants import prepared
from weft.runtime.memory import Arena, Phase, choose_phases, plan_arena
from weft.runtime.record import note_arena
from weft.runtime.tape import Tape, cut_at, numbers_of, scratch_words, segments, size_place, table_words

_MOST_BINDINGS = 256
"""Sets of sizes that a program keeps its layout of memory for."""


@dataclass(frozen=True)
class ControlSegment:
    """Control flow that no one tape runs: a loop or a branch, and what carries out each list of steps inside."""

    step: ControlStep
    parts: tuple[tuple[Segment, ...], ...]


Apart: TypeAlias = CallStep | DotStep | ControlSegment
"""What is no tape: the framework carries it out, or the host decides on it."""
Segment: TypeAlias = Tape | Apart
"""What carries out steps that follow each other."""


@dataclass(frozen=True)
class Binding:
    """A program with its sizes known: where temporaries lie, the shape and strides of every buffer, and its tapes."""

    sizes: Mapping[str, int]
    arena: Arena
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    segments: tuple[Segment, ...]
    numbers: Mapping[int, int]
    """Numbers that kernels take, by their places in the table: sizes, and what the user's kernels are given."""
    deciding: Segment | None = None
    """The segment after which it is known whether the data is right, where later ones write over inputs."""
    phases: tuple[Phase, ...] = ()
    """What each segment needs and what it is the last to need, where memory is made and given back in between."""


@dataclass
class Program:
    """A plan with its loaded code, and a binding for each set of sizes it was called with."""

    plan: Plan
    code: Any
    prepare: FuncOp | None = None
    bindings: dict[tuple[int, ...], Binding] = field(default_factory=dict[tuple[int, ...], Binding])

    by_phases: ClassVar[bool] = False
    """Whether memory can be had and given back at any time at little cost, as from a GPU's caching allocator."""

    def __post_init__(self) -> None:
        self.words = table_words(self.plan)
        self.scratch = scratch_words(self.plan)

    def is_apart(self, step: Step) -> bool:
        """Whether a step is in no tape: the framework carries it out, or the host decides on what is inside."""
        return isinstance(step, CallStep | LoopStep | IfStep)

    def write_tape(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Tape:
        """The tape of steps that run without Python between them."""
        raise NotImplementedError

    def constants(self, given: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """The arrays of constant buffers, made of the program's constant arguments."""
        return prepared(self.plan, self.prepare, given)

    def segment(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Segment:
        """What carries out steps that follow each other: a tape, or the framework."""
        first = steps[0]
        if not self.is_apart(first):
            return self.write_tape(steps, sizes)
        if isinstance(first, LoopStep | IfStep):
            bodies = (first.body,) if isinstance(first, LoopStep) else (first.then, first.otherwise)
            parts = [cut_at(body, self.is_apart) for body in bodies]
            return ControlSegment(first, tuple(tuple(self.segment(run, sizes) for run in runs) for runs in parts))
        assert isinstance(first, CallStep | DotStep)
        return first

    def _deciding(self, parts: Sequence[tuple[Step, ...]], carried: Sequence[Segment]) -> Segment | None:
        passed = 0
        for steps, segment in zip(parts, carried, strict=True):
            passed += len(steps)
            if self.plan.decided_after and passed == self.plan.decided_after:
                return segment
        return None

    def parts(self, sizes: Mapping[str, int]) -> tuple[list[tuple[Step, ...]], tuple[Phase, ...]]:
        """The steps that each segment runs, and what phases do, where they save memory."""
        parts = segments(self.plan, self.is_apart)
        return choose_phases(self.plan, sizes, parts) if self.by_phases else (parts, ())

    def bind(self, sizes: Mapping[str, int]) -> Binding:
        """The layout of memory for these sizes, planned once for each set of them."""
        key = tuple(sizes[name] for name in self.plan.symbols)
        binding = self.bindings.get(key)
        if binding is None:
            buffers = self.plan.buffers
            parts, phases = self.parts(sizes)
            carried = tuple(self.segment(steps, sizes) for steps in parts)
            binding = Binding(
                dict(sizes),
                plan_arena(self.plan, sizes),
                tuple(tuple(evaluate(size, sizes) for size in buffer.tensor.shape) for buffer in buffers),
                tuple(tuple(evaluate(s, sizes) for s in buffer.layout.strides) for buffer in buffers),
                carried,
                {size_place(self.plan, name): sizes[name] for name in self.plan.symbols} | numbers_of(self.plan, sizes),
                self._deciding(parts, carried),
                phases,
            )
            while len(self.bindings) >= _MOST_BINDINGS:
                self.bindings.pop(next(iter(self.bindings)), None)
            self.bindings[key] = binding
            note_arena(self.plan, sizes, binding.arena.size)
        return binding
