"""The kernel after each pass over it, for those who read what passes do: `--print-after-all`, `--each-pass`.

    trace = PassTrace()
    run_passes(kernel.clone(), trace.watch(nvidia_kernel_passes()), target, notes)
    for number, step, text in trace.changes_of(kernel, notes):
        print(number, step.name, text)

Alternatives that were tried and given up leave nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from weft.backends.nvidia.ir.kernel_passes import FirstThatMatches, KernelPass, Match, PassNote, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile
from weft.tile.text import print_program


@dataclass(frozen=True)
class TracedStep:
    """A copy of a kernel as a pass, or a choice between alternatives, left it."""

    name: str
    inside: tuple[str, ...]
    """The choice and the alternative that the pass stands in, and those around them."""
    kernel: tile.KernelOp


@dataclass
class PassTrace:
    """Kernels after each of the passes that are watched, in the order in which they ran."""

    _steps: list[TracedStep] = field(default_factory=list[TracedStep])

    def watch(self, passes: Sequence[KernelPass]) -> tuple[KernelPass, ...]:
        """Passes that do the same as those that are given, and leave a copy of the kernel here."""
        return tuple(self._watched(each) for each in passes)

    def steps_of(self, kernel: str, notes: Sequence[PassNote]) -> list[TracedStep]:
        """What the passes that were taken left of a kernel; `notes` are what came of them."""
        given_up = {(*note.inside, note.name) for note in notes if note.is_alternative and note.refused is not None}

        def is_taken(step: TracedStep) -> bool:
            around = (step.inside[:depth] for depth in range(1, len(step.inside) + 1))
            return step.kernel.sym_name.data == kernel and given_up.isdisjoint(around)

        return list(filter(is_taken, self._steps))

    def changes_of(
        self, kernel: tile.KernelOp, notes: Sequence[PassNote], *, locations: bool = False
    ) -> list[tuple[int, TracedStep, str]]:
        """The text of a kernel after each pass that changed it, and which of those that were taken that is."""
        return changes(kernel, self.steps_of(kernel.sym_name.data, notes), locations=locations)

    def _watched(self, each: KernelPass) -> KernelPass:
        if isinstance(each, FirstThatMatches):
            alternatives = (replace(one, passes=self.watch(one.passes)) for one in each.alternatives)
            each = replace(each, alternatives=tuple(alternatives))
        return _Watched(each.name, each, self._steps, each.decides)


def changes(
    kernel: tile.KernelOp, steps: Sequence[TracedStep], *, locations: bool = False
) -> list[tuple[int, TracedStep, str]]:
    """The steps that changed a kernel, with their numbers, from 1 on, and the text that they left."""
    before, found = print_program(kernel, locations=locations), list[tuple[int, TracedStep, str]]()
    for number, step in enumerate(steps, 1):
        text = print_program(step.kernel, locations=locations)
        found += [(number, step, text)] if text != before else []
        before = text
    return found


@dataclass(frozen=True, eq=False)
class _Watched(KernelPass):
    """A pass that leaves a copy of the kernel behind it.

    A     →     what the pass makes of A
    """

    name: str  # type: ignore[misc]
    watched: KernelPass
    steps: list[TracedStep]
    decides: bool  # type: ignore[misc]

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return self.watched.matches(kernel, target)

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        return self.watched.apply(kernel, target)

    def run(
        self, kernel: tile.KernelOp, target: NvidiaTarget, notes: list[PassNote], inside: tuple[str, ...] = ()
    ) -> Refused | None:
        refused = self.watched.run(kernel, target, notes, inside)
        if refused is None:
            self.steps.append(TracedStep(self.name, inside, kernel.clone()))
        return refused

    @property
    def passes(self) -> Iterator[KernelPass]:
        yield from self.watched.passes
