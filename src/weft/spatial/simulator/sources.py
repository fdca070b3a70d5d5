"""Who feeds whom: for each issue, which issue or which word of memory its operands come from.

Nothing is computed here. Streams are looked up in the registers, words of memory by who wrote them last, weights by the
install before, chained operands by the ALU and the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.spatial.isa import CHAINED, Opcode
from weft.spatial.program import Program, described
from weft.spatial.registers import Registers
from weft.spatial.simulator.issues import Ends, Issues, SimulationError, drivers, readers


@dataclass(frozen=True)
class Cells:
    """The words of memory before the first cycle: where they are, and their tags; `key` is slice and address."""

    keys: np.ndarray
    order: np.ndarray
    tags: np.ndarray

    @staticmethod
    def of(program: Program) -> Cells:
        """The image's words, then those of each argument."""
        words = program.machine.slice_words
        parts = [program.image, *program.inputs]
        keys = np.concatenate([part.slices.astype(np.int64) * words + part.addresses for part in parts])
        order = np.argsort(keys, kind="stable")
        return Cells(keys[order], order, np.concatenate([part.tags for part in parts]))

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The cell at each place; -1 where there is none. Of two at one place it is the later one."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = np.searchsorted(self.keys, keys, side="right") - 1
        return np.where((at >= 0) & (self.keys[np.maximum(at, 0)] == keys), self.order[np.maximum(at, 0)], -1)


@dataclass(frozen=True)
class Writes:
    """The writes in the order of places and then of time."""

    keys: np.ndarray
    issues: np.ndarray

    def find(self, places: np.ndarray, cycles: np.ndarray) -> np.ndarray:
        """The write that a place holds in a cycle; -1 where there was none before."""
        if not len(self.keys):
            return np.full(len(places), -1)
        at = np.searchsorted(self.keys, _timed(places, cycles), side="right") - 1
        same = self.keys[np.maximum(at, 0)] >> 32 == places
        return np.where((at >= 0) & same, self.issues[np.maximum(at, 0)], -1)


def _timed(places: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    return (places.astype(np.int64) << 32) + cycles


@dataclass(frozen=True)
class Sources:
    """Everything that values come from."""

    drives: Ends
    roots: np.ndarray
    """For each driver: itself where it is computed, and -1 - cell where it is a word that memory had at the start."""
    operands: tuple[tuple[Ends, np.ndarray], tuple[Ends, np.ndarray]]
    """For each of the two operands: what is taken off streams, and the driver of each."""
    writes: Writes
    write_driver: np.ndarray
    """For each issue, the driver of what it writes; -1 for others."""

    def root_of_word(self, places: np.ndarray, cycles: np.ndarray, cells: Cells) -> np.ndarray:
        """Where the contents of words come from, in the terms of `roots`; the least integer where from nowhere."""
        found = self.writes.find(places, cycles)
        cell = cells.find(places)
        initial = np.where(cell >= 0, -1 - cell, NOWHERE)
        written = self.roots[np.maximum(self.write_driver[np.maximum(found, 0)], 0)] if len(self.roots) else initial
        return np.where(found >= 0, written, initial)


NOWHERE = np.iinfo(np.int64).min


def find_sources(program: Program, issues: Issues, cells: Cells, check: bool) -> Sources:
    """Look everything up; a place that holds nothing, or (with `check`) another vector than is wanted, is an error."""
    machine = program.machine
    drives = drivers(program, issues)
    registers = Registers.of(machine, drives.streams, drives.positions, drives.cycles)
    found: list[tuple[Ends, np.ndarray]] = []
    for operand in (0, 1):
        ends = readers(program, issues, operand)
        held = registers.holder(ends.streams, ends.positions, ends.cycles)
        _refuse(program, issues, ends.issues[held < 0], "finds nothing on its stream")
        if check:
            made, wanted = issues["tag"][drives.issues[held]], issues[f"want{operand}"][ends.issues]
            loads = issues["opcode"][ends.issues] == Opcode.LOAD_WEIGHTS
            wanted = wanted + np.where(loads, ends.bytes, 0)
            _refuse(program, issues, ends.issues[made != wanted], "finds another vector on its stream")
            whole = loads | (issues["opcode"][drives.issues[held]] == Opcode.READ) | (ends.bytes == 0)
            _refuse(program, issues, ends.issues[~whole & (drives.bytes[held] != ends.bytes)], "finds a torn vector")
        found.append((ends, held))
    ends, held = found[0]
    writing = issues["opcode"][ends.issues] == Opcode.WRITE
    write_driver = np.full(len(issues["opcode"]), -1)
    write_driver[ends.issues[writing]] = held[writing]
    written = issues.of(Opcode.WRITE)
    places = issues["queue"][written].astype(np.int64) * machine.slice_words + issues["address"][written]
    keys = _timed(places, issues["cycle"][written] + machine.latency.write)
    order = np.argsort(keys, kind="stable")
    writes = Writes(keys[order], written[order])
    roots = _roots(program, issues, drives, writes, write_driver, cells, check)
    return Sources(drives, roots, (found[0], found[1]), writes, write_driver)


def _roots(
    program: Program,
    issues: Issues,
    drives: Ends,
    writes: Writes,
    write_driver: np.ndarray,
    cells: Cells,
    check: bool,
) -> np.ndarray:
    roots = np.arange(len(drives.issues), dtype=np.int64)
    reading = np.flatnonzero(issues["opcode"][drives.issues] == Opcode.READ)
    by = drives.issues[reading]
    places = issues["queue"][by].astype(np.int64) * program.machine.slice_words + issues["address"][by]
    found = writes.find(places, issues["cycle"][by])
    cell = cells.find(places)
    _refuse(program, issues, by[(found < 0) & (cell < 0)], "reads a word that no one wrote")
    if check:
        tags = np.where(found >= 0, issues["want0"][np.maximum(found, 0)], cells.tags[cell] if len(cells.tags) else 0)
        _refuse(program, issues, by[tags != issues["tag"][by]], "reads another vector than it should")
    roots[reading] = np.where(found >= 0, write_driver[np.maximum(found, 0)], -1 - cell)
    while True:  # a word may have been copied from word to word
        moved = roots >= 0
        after = np.where(moved, roots[np.maximum(roots, 0)], roots)
        if np.array_equal(after, roots):
            return roots
        roots = after


def chained(program: Program, issues: Issues, operand: int) -> tuple[np.ndarray, np.ndarray]:
    """Issues of ALUs that take an operand from a neighbour, and the issue that made it."""
    source = issues[f"source{operand}"]
    taking = np.flatnonzero((issues["opcode"] == Opcode.ALU) & (source >= CHAINED))
    queue = program.units.alu(0) + source[taking] - CHAINED
    made = at_cycle(issues, Opcode.ALU, queue, issues["cycle"][taking] - program.machine.latency.alu)
    _refuse(program, issues, taking[made < 0], "is handed nothing by its neighbour")
    return taking, made


def at_cycle(issues: Issues, opcode: Opcode, queues: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    """What each queue issued in a cycle; -1 for nothing."""
    those = issues.of(opcode)
    if not len(those):
        return np.full(len(queues), -1)
    keys = (issues["queue"][those].astype(np.int64) << 40) + issues["cycle"][those]
    order = np.argsort(keys, kind="stable")
    wanted = (queues.astype(np.int64) << 40) + cycles
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    return np.where(keys[order][at] == wanted, those[order[at]], -1)


def _refuse(program: Program, issues: Issues, wrong: np.ndarray, what: str) -> None:
    if len(wrong):
        first = int(wrong[np.argmin(issues["cycle"][wrong])])
        raise SimulationError(f"{describe(program, issues, first)} {what}", hint="`weft spatial verify` says why")


def describe(program: Program, issues: Issues, issue: int) -> str:
    """An issue as messages name it."""
    row = {name: issues[name][issue] for name in ("queue", "opcode", "origin")}
    rows = np.zeros(1, program.instructions.dtype)
    for name, value in row.items():
        rows[name] = value
    return described(program, rows[0], int(issues["cycle"][issue]))
