"""Live ranges: when each buffer of a native program is in use, inside of loops and branches, too.

Steps are numbered as they stand, those of a body between the start and the end of their loop. A buffer that is used in
one body alone is made anew in every turn, and lives from its first use there to its last. One that is used elsewhere as
well (what a loop carries, captures or slices, its condition) lives for the whole loop. The branches of an `If` stand
behind each other, though only one of them runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft.lower.steps import IfStep, LoopStep, Step, buffers_of

_Span = tuple[int, int]
_Use = tuple[int, tuple[int, ...]]
"""A step's number, and the loops around it by theirs, the outermost first."""


def native_lifetimes(steps: Sequence[Step]) -> dict[int, _Span]:
    """The numbers of the first and of the last step that each buffer lives in."""
    uses = _Uses()
    uses.note(steps, ())
    return {buffer: uses.life(buffer) for buffer in uses.of}


@dataclass
class _Uses:
    """The uses of each buffer, and the spans of loops by the numbers they start at."""

    of: dict[int, list[_Use]] = field(default_factory=dict[int, list[_Use]])
    loops: dict[int, _Span] = field(default_factory=dict[int, _Span])
    number: int = 0

    def note(self, steps: Sequence[Step], around: tuple[int, ...]) -> None:
        for step in steps:
            match step:
                case LoopStep():
                    self._loop(step, around)
                case IfStep():
                    self._use([step.condition], around)
                    self.note(step.then, around)
                    self.note(step.otherwise, around)
                case _:
                    self._use(buffers_of(step), around)

    def _loop(self, step: LoopStep, around: tuple[int, ...]) -> None:
        own = [number for each in step.slices for number in (each.buffer, each.whole.buffer)]
        own += [step.condition] if step.condition >= 0 else []
        first = self.number
        self._use(own, around)
        self.note(step.body, (*around, first))
        self.loops[first] = (first, self.number)
        self._use(own, around)

    def _use(self, buffers: Iterable[int], around: tuple[int, ...]) -> None:
        for buffer in buffers:
            self.of.setdefault(buffer, []).append((self.number, around))
        self.number += 1

    def life(self, buffer: int) -> _Span:
        uses = self.of[buffer]
        shared = 0  # loops that all uses are in
        while len({around[: shared + 1] for _, around in uses}) == 1 and len(uses[0][1]) > shared:
            shared += 1
        spans = [self.loops[around[shared]] if len(around) > shared else (number, number) for number, around in uses]
        return min(first for first, _ in spans), max(last for _, last in spans)
