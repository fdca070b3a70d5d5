"""What the queues issue and when: the words of each queue, run from the first cycle on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.errors import WeftError
from weft.spatial.isa import CHAINED, EMITS, NONE, Function, Opcode, load_widths, operand_bytes, result_bytes
from weft.spatial.program import ISSUE, NOP, REPEAT, Program, Text, expanded, port_of


class SimulationError(WeftError):
    """A program that does what the machine cannot do, found while it ran."""


@dataclass(frozen=True)
class Issues:
    """Every issue as columns, in the order of groups, and where each group's begin."""

    columns: Mapping[str, np.ndarray]
    starts: np.ndarray
    positions: np.ndarray
    """Of units, by queue."""

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def of(self, *opcodes: Opcode) -> np.ndarray:
        return np.flatnonzero(np.isin(self["opcode"], opcodes))


def run_queues(program: Program) -> Issues:
    """Walk the words of every queue. Groups that overlap others of their queue become single issues."""
    rows = program.instructions.copy()
    rows["count"] = 0
    for text in program.texts:
        _walk(text, rows)
    rows = _in_order(rows)
    positions = np.array([program.units.position(queue) for queue in range(program.units.end)])
    starts = np.concatenate([[0], np.cumsum(rows["count"])])
    return Issues(expanded(rows), starts, positions)


def _walk(text: Text, rows: np.ndarray) -> None:
    kinds, first, second = text.words.T
    lasts = np.select([kinds == ISSUE, kinds == NOP, kinds == REPEAT], [np.ones_like(kinds), first, first * second])
    begins = np.cumsum(lasts) - lasts
    issued = np.flatnonzero(kinds == ISSUE)
    groups = first[issued]
    rows["cycle"][groups] = begins[issued]
    rows["count"][groups] = 1
    repeats = np.flatnonzero(kinds == REPEAT)
    if len(repeats):
        if repeats[0] == 0 or np.any(kinds[repeats - 1] != ISSUE):
            raise SimulationError(f"queue {text.queue} repeats what it has not issued")
        repeated = first[repeats - 1]
        rows["count"][repeated] = 1 + first[repeats]
        rows["period"][repeated] = second[repeats]


def _in_order(rows: np.ndarray) -> np.ndarray:
    ends = rows["cycle"] + (rows["count"] - 1) * rows["period"]
    port = port_of(rows["opcode"])
    order = np.lexsort((rows["cycle"], port, rows["queue"]))
    same = (rows["queue"][order][1:] == rows["queue"][order][:-1]) & (port[order][1:] == port[order][:-1])
    late = same & (ends[order][:-1] > rows["cycle"][order][1:])
    if not late.any():
        return rows
    tangled = np.zeros(len(rows), bool)
    tangled[order[:-1][late]] = tangled[order[1:][late]] = True
    parts = [rows[~tangled]]
    columns = expanded(rows[tangled])
    alone = np.zeros(len(columns["group"]), rows.dtype)
    for name in rows.dtype.names or ():
        alone[name] = columns.get(name, 0)
    alone["count"] = alone["period"] = 1
    return np.concatenate([*parts, alone])


@dataclass(frozen=True)
class Ends:
    """Streams that issues read or drive: one entry for each stream, in the order of issues and then of bytes."""

    issues: np.ndarray
    bytes: np.ndarray
    streams: np.ndarray
    positions: np.ndarray
    cycles: np.ndarray
    firsts: np.ndarray
    """Where the entries of each issue begin."""


def drivers(program: Program, issues: Issues) -> Ends:
    """What is put on streams."""
    latency = program.machine.latency
    widths = np.array([result_bytes(function) for function in Function])
    op = issues["opcode"]
    driven = issues["result"] != NONE
    plain = np.isin(op, (Opcode.READ, Opcode.RECEIVE))
    width = np.where(plain, 1, np.where(op == Opcode.ALU, widths[issues["function"]], 4))
    silent = (op == Opcode.ACCUMULATE) & (issues["detail"] & EMITS == 0)
    drives = (Opcode.READ, Opcode.ALU, Opcode.ACCUMULATE, Opcode.RECEIVE)
    width = np.where(driven & ~silent & np.isin(op, drives), width, 0)
    kinds = [op == Opcode.READ, op == Opcode.ALU, op == Opcode.RECEIVE]
    late = np.select(kinds, [latency.read, latency.alu, latency.receive], latency.accumulate)
    return _ends(issues, width, issues["result"], issues["cycle"] + late)


def readers(program: Program, issues: Issues, operand: int) -> Ends:
    """What is taken off streams, as the first or the second operand."""
    op, source = issues["opcode"], issues[f"source{operand}"]
    width = np.zeros(len(op), np.int64)
    table = np.array([operand_bytes(function, operand) for function in Function])
    alu = (op == Opcode.ALU) & (source < CHAINED)
    width[alu] = table[issues["function"][alu]]
    if operand == 0:
        width[np.isin(op, (Opcode.WRITE, Opcode.MULTIPLY, Opcode.SEND))] = 1
        loads = op == Opcode.LOAD_WEIGHTS
        width[loads] = load_widths(issues["detail"][loads], program.machine)
    return _ends(issues, width, source, issues["cycle"])


def _ends(issues: Issues, width: np.ndarray, streams: np.ndarray, cycles: np.ndarray) -> Ends:
    firsts = np.cumsum(width) - width
    which = np.repeat(np.arange(len(width)), width)
    byte = np.arange(len(which)) - firsts[which]
    return Ends(which, byte, streams[which] + byte, issues.positions[issues["queue"][which]], cycles[which], firsts)
