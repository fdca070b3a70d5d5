"""Checks a program against the invariants of its machine. It reads nothing but the schedule."""

from __future__ import annotations

from weft.errors import WeftError
from weft.spatial.isa import Opcode
from weft.spatial.program import Program
from weft.spatial.system import System
from weft.spatial.verifier.links import check_links, check_wires
from weft.spatial.verifier.matrix import check_matrix
from weft.spatial.verifier.memory import check_memory
from weft.spatial.verifier.queues import check_capacity, check_length, check_queues, check_units, length_of
from weft.spatial.verifier.streams import check_streams
from weft.spatial.verifier.violations import INVARIANTS, Checks, Violation


class ScheduleError(WeftError):
    """A schedule that its machine cannot run as it is meant."""


def violations(program: Program) -> list[Violation]:
    """Everything that is wrong with a program; nothing where it is safe to run."""
    checks = _checked(program)
    linked = checks.of(Opcode.SEND, Opcode.RECEIVE)
    checks.refuse(9, linked, "needs another chip, and the program is for one")
    return sorted(checks.found, key=lambda each: each.invariant)


def system_violations(system: System) -> list[Violation]:
    """Everything that is wrong with the programs of many chips."""
    chips = [_checked(program) for program in system.programs]
    found = [
        Violation(each.invariant, f"chip {number}: {each.message}")
        for number, checks in enumerate(chips)
        for each in checks.found
    ]
    found += check_wires(system, chips)
    lengths = [length_of(checks) for checks in chips if len(checks.issues["cycle"])]
    length = max((end for _, end in lengths), default=0) - min((begin for begin, _ in lengths), default=0)
    if length != system.cycles:
        found.append(Violation(10, f"{system.cycles} cycles are predicted, and the schedule takes {length}"))
    return sorted(found, key=lambda each: each.invariant)


def _checked(program: Program) -> Checks:
    checks = Checks(program)
    if check_units(checks):
        check_queues(checks)
        check_streams(checks)
        check_memory(checks)
        check_matrix(checks)
        check_capacity(checks)
        check_length(checks)
        check_links(checks)
    return checks


def verify(program: Program) -> None:
    """Raise where a program breaks an invariant."""
    _raise(violations(program))


def verify_system(system: System) -> None:
    """Raise where the programs of many chips break an invariant."""
    _raise(system_violations(system))


def _raise(found: list[Violation]) -> None:
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ScheduleError(f"{found[0]}{more}", hint=f"the invariant: {INVARIANTS[found[0].invariant]}")
