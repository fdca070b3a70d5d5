"""Checks a program against the invariants of its machine. It reads nothing but the schedule."""

from __future__ import annotations

from weft.errors import WeftError
from weft.spatial.program import Program
from weft.spatial.verifier.matrix import check_matrix
from weft.spatial.verifier.memory import check_memory
from weft.spatial.verifier.queues import check_capacity, check_length, check_queues, check_units
from weft.spatial.verifier.streams import check_streams
from weft.spatial.verifier.violations import INVARIANTS, Checks, Violation


class ScheduleError(WeftError):
    """A schedule that its machine cannot run as it is meant."""


def violations(program: Program) -> list[Violation]:
    """Everything that is wrong with a program; nothing where it is safe to run."""
    checks = Checks(program)
    if check_units(checks):
        check_queues(checks)
        check_streams(checks)
        check_memory(checks)
        check_matrix(checks)
        check_capacity(checks)
        check_length(checks)
    return sorted(checks.found, key=lambda each: each.invariant)


def verify(program: Program) -> None:
    """Raise where a program breaks an invariant."""
    found = violations(program)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ScheduleError(f"{found[0]}{more}", hint=f"the invariant: {INVARIANTS[found[0].invariant]}")
