"""The memory of one running call of a program, kept for the next: addresses, arena, constants, views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

import numpy as np

from weft.lower.steps import Step
from weft.runtime.array_adapter import ArrayT
from weft.runtime.bound_calls import BoundCall, BoundPlace
from weft.runtime.constant_sets import ConstantSet
from weft.runtime.program import Binding, Segment

SingleSteps: TypeAlias = Sequence[tuple[Step, Segment]]
"""The steps of a program, each with what carries it out by itself."""


@dataclass
class Frame(Generic[ArrayT]):
    """The memory of one running call: an arena, and the table of addresses with the launcher's scratch behind it.

    The last word of the table is for the number that says which check has failed, where nobody else takes it.

    `inputs` and `results` are those of the program, with the strides of the first and what makes an array for the
    second.
    """

    binding: Binding
    words: np.ndarray
    table: memoryview
    address: int
    inputs: list[tuple[int, tuple[int, ...]]]
    results: list[tuple[int, Callable[..., ArrayT], tuple[int, ...], tuple[int, ...], Any]]
    arena: ArrayT | None = None
    constants: ConstantSet[ArrayT] | None = None
    views: dict[BoundPlace, ArrayT] = field(default_factory=dict[BoundPlace, Any])
    calls: dict[int, BoundCall[ArrayT]] = field(default_factory=dict[int, Any])
    """What the framework carries out, by the identities of the plan's steps."""
    single_steps: SingleSteps | None = None
    """The program's steps one by one, once a profiler has asked for them."""
    base: int = 0
    """Where in memory the temporaries begin."""
    makers: dict[int, Sequence[Any]] | None = None
    """What makes the memory of phases, by buffer: a function, and the shape, strides and type that it takes."""

    def place_arena(self, arena: ArrayT, base: int) -> None:
        """Let temporaries lie in this arena, from the address `base` on."""
        self.arena = arena
        if base != self.base:
            offsets = self.binding.arena.offsets
            self.words[list(offsets)] = base + np.fromiter(offsets.values(), np.int64, len(offsets))
            self.base = base
