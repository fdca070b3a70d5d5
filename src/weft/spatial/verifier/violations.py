"""What the verifier says: the invariant that is broken, and the unit, the cycle and the op that break it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.spatial.program import Program, described, expanded

INVARIANTS = {
    1: "a queue issues at most one instruction in a cycle, and its words say what is scheduled",
    2: "every operand is the vector that is meant, at that cycle and position",
    3: "a register has one driver in a cycle, and no vector is driven over before it is taken",
    4: "a slice reads and writes once in a cycle, in different banks, and reads what was written for it",
    5: "weights are loaded, installed and used in that order, and sums are taken when they are complete",
    6: "an ALU takes operands from streams and from neighbours only",
    7: "links and shifts are used within their capacity",
    8: "memory holds data and program text, and instructions are fetched before they issue",
    9: "every send has its receive",
    10: "predicted cycles are the cycles of the schedule",
}


@dataclass(frozen=True)
class Violation:
    """A broken invariant."""

    invariant: int
    message: str

    def __str__(self) -> str:
        return f"invariant {self.invariant}: {self.message}"


@dataclass
class Checks:
    """The issues of a program as its schedule states them, and what was found wrong with them."""

    program: Program
    found: list[Violation] = field(default_factory=list[Violation])

    def __post_init__(self) -> None:
        self.issues = expanded(self.program.instructions)
        units = self.program.units
        self.positions = np.array([units.position(queue) for queue in range(units.end)])

    def at(self, issue: int) -> str:
        """An issue, in words."""
        row: Any = self.program.instructions[int(self.issues["group"][issue])]
        return described(self.program, row, int(self.issues["cycle"][issue]))

    def refuse(self, invariant: int, issues: np.ndarray, what: str) -> None:
        """Note the first of these issues, if there are any."""
        if len(issues):
            first = int(issues[np.argmin(self.issues["cycle"][issues])])
            more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
            self.found.append(Violation(invariant, f"{self.at(first)} {what}{more}"))

    def say(self, invariant: int, message: str) -> None:
        self.found.append(Violation(invariant, message))

    def of(self, *opcodes: int) -> np.ndarray:
        return np.flatnonzero(np.isin(self.issues["opcode"], opcodes))
