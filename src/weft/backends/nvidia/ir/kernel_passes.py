"""Passes over one kernel on its way to a GPU: what a pass is, how alternatives are stated, and what a run tells.

The list of them is `weft.backends.nvidia.kernel_pipeline`. A pass is a frozen dataclass, as passes over graphs are:

    FirstThatMatches(
        "copies",
        (
            Alternative("TMA", (FoldViews(), PipelineDots(), AssignLayouts(), AllocateShared()), when=(has_dots,)),
            Alternative("plain", (FoldViews(), AssignLayouts(), AllocateShared())),
        ),
    )

That something does not fit is a value, `Refused`, never an exception: an alternative that is refused leaves the kernel
as it was, and the next one is tried. `PassNote`s say what came of each, and why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Refused:
    """Why something is not done to a kernel, and what a user can do about it. It is false: `if each.matches(…)`."""

    reason: str
    hint: str | None = None

    def __bool__(self) -> Literal[False]:
        return False


Match: TypeAlias = Literal[True] | Refused
Condition: TypeAlias = Callable[[tile.KernelOp, NvidiaTarget], Match]


@dataclass(frozen=True)
class PassNote:
    """What came of a pass, of an alternative, or of a choice between alternatives: done, or the reason why not."""

    name: str
    inside: tuple[str, ...] = ()
    """The choice and the alternative that it stands in, and those around them."""
    refused: str | None = None

    @property
    def is_alternative(self) -> bool:
        """Whether it is of an alternative: what is inside one stands in its choice and in it."""
        return len(self.inside) % 2 == 1

    def __str__(self) -> str:
        said = "" if self.refused is None else f": no, {self.refused}"
        return f"{'  ' * len(self.inside)}{self.name}{said}"


class KernelPass(ABC):
    """A rewrite of one kernel, in place. Its docstring shows a kernel before → after."""

    name: ClassVar[str]
    decides: ClassVar[bool] = False
    """Whether the alternative that it stands in is given up where it does not match; other passes are left out then."""

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        """Whether there is something to do here, or why not. Changes nothing."""
        return True

    @abstractmethod
    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        """Rewrite a kernel that matches. One that is refused here is in no state to go on with."""

    def run(
        self, kernel: tile.KernelOp, target: NvidiaTarget, notes: list[PassNote], inside: tuple[str, ...] = ()
    ) -> Refused | None:
        """Match, apply and note it; what is refused ends the list that the pass stands in."""
        match = self.matches(kernel, target)
        refused = self.apply(kernel, target) if match else match
        notes.append(PassNote(self.name, inside, None if refused is None else refused.reason))
        return refused if self.decides else None

    @property
    def passes(self) -> Iterator[KernelPass]:
        """The pass, or those of its alternatives."""
        yield self


@dataclass(frozen=True)
class Alternative:
    """One way to go on, with the conditions under which it is tried at all."""

    name: str
    passes: tuple[KernelPass, ...]
    when: tuple[Condition, ...] = ()

    def refuses(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        """Why it need not be tried."""
        first = [self.passes[0].matches] if self.passes and self.passes[0].decides else []
        return next((match for each in (*self.when, *first) if not (match := each(kernel, target))), None)


@dataclass(frozen=True)
class FirstThatMatches(KernelPass):
    """Alternatives in the order in which they are tried: the first one that nothing in it refuses is taken.

    A                                →      what the first alternative that fits makes of A
    """

    name: str  # type: ignore[misc]
    alternatives: tuple[Alternative, ...]
    decides: ClassVar[bool] = True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        return self.run(kernel, target, [])

    def run(
        self, kernel: tile.KernelOp, target: NvidiaTarget, notes: list[PassNote], inside: tuple[str, ...] = ()
    ) -> Refused | None:
        place, refused = len(notes), Refused("there is no alternative")
        for number, each in enumerate(self.alternatives, 1):
            start = len(notes)
            refused = each.refuses(kernel, target)
            if refused is None:
                may_go_on = number < len(self.alternatives) and any(step.decides for step in each.passes)
                trial = kernel.clone() if may_go_on else kernel
                refused = run_passes(trial, each.passes, target, notes, (*inside, self.name, each.name))
                if refused is None and trial is not kernel:
                    adopt(kernel, trial)
            notes.insert(start, PassNote(each.name, (*inside, self.name), None if refused is None else refused.reason))
            if refused is None:
                break
        notes.insert(place, PassNote(self.name, inside, None if refused is None else refused.reason))
        return refused

    @property
    def passes(self) -> Iterator[KernelPass]:
        for alternative in self.alternatives:
            for each in alternative.passes:
                yield from each.passes


def run_passes(
    kernel: tile.KernelOp,
    passes: Sequence[KernelPass],
    target: NvidiaTarget,
    notes: list[PassNote],
    inside: tuple[str, ...] = (),
) -> Refused | None:
    """Apply passes in order; the first that is refused ends it."""
    return next((refused for each in passes if (refused := each.run(kernel, target, notes, inside)) is not None), None)


def adopt(kernel: tile.KernelOp, other: tile.KernelOp) -> None:
    """Let a kernel be what another one is, which is nothing then."""
    old = kernel.block
    kernel.body.detach_block(old)
    old.erase(safe_erase=False)
    other.body.move_blocks(kernel.body)
    kernel.attributes = dict(other.attributes)


# -- conditions of alternatives ----------------------------------------------------------------------------------------


def has_dots(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Kernels around dots of tiles."""
    return True if any(isinstance(op, tile.DotOp) for op in kernel.walk()) else Refused("it has no dot of tiles")


def multiplies_from_shared(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Targets with a unit that multiplies from shared memory."""
    units = ", ".join(unit.name for unit in target.matmul_units)
    found = target.matmul_unit("shared") is not None
    return True if found else Refused(f"{target.arch} multiplies by {units}: not from shared memory")


def has_tma(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Targets with TMA, which brings memory to shared memory."""
    return True if target.has_tma else Refused(f"{target.arch} has no TMA")


def reads_whole_tiles(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Kernels none of whose tiles come in pieces."""
    in_pieces = any(isinstance(op, tile.LoadOp) and op.pieces > 1 for op in kernel.walk())
    return Refused("only TMA reads tiles in pieces") if in_pieces else True


def knows_its_programs(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Kernels whose number of programs does not stand in memory."""
    return True if kernel.limit is None else Refused("memory says how many programs there are")
