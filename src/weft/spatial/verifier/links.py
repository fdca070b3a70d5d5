"""Invariants 7 and 9: what goes over the links between chips, when, and in which order."""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import Opcode
from weft.spatial.system import System
from weft.spatial.verifier.violations import Checks, Violation


def check_links(checks: Checks) -> None:
    """A link carries a vector at a time."""
    machine, issues = checks.program.machine, checks.issues
    for opcode in (Opcode.SEND, Opcode.RECEIVE):
        own = checks.of(opcode)
        order = own[np.lexsort((issues["cycle"][own], issues["queue"][own]))]
        queue, cycle = issues["queue"][order], issues["cycle"][order]
        soon = (queue[1:] == queue[:-1]) & (cycle[1:] - cycle[:-1] < machine.link_period)
        checks.refuse(7, order[1:][soon], "uses a link that is still busy with the vector before")


def check_wires(system: System, chips: list[Checks]) -> list[Violation]:
    """Every send has its receive, in the same order and late enough."""
    found: list[Violation] = []
    units = chips[0].program.units
    ends = {(wire.chip, units.link(wire.link)): (wire.to_chip, units.link(wire.to_link)) for wire in system.wires}
    received = {end: _of(chips[end[0]], Opcode.RECEIVE, end[1]) for end in _used(chips, Opcode.RECEIVE)}
    for chip, queue in _used(chips, Opcode.SEND):
        checks, sends = chips[chip], _of(chips[chip], Opcode.SEND, queue)
        end = ends.get((chip, queue))
        if end is None:
            found.append(Violation(9, f"chip {chip}: {checks.at(int(sends[0]))} has no wire"))
            continue
        found += _check_wire(checks, sends, chips[end[0]], received.pop(end, np.zeros(0, int)), chip, end[0])
    for (chip, _), receives in received.items():
        found.append(Violation(9, f"chip {chip}: {chips[chip].at(int(receives[0]))} waits for what no one sends"))
    return found


def _used(chips: list[Checks], opcode: Opcode) -> list[tuple[int, int]]:
    return [
        (number, int(queue))
        for number, checks in enumerate(chips)
        for queue in np.unique(checks.issues["queue"][checks.of(opcode)])
    ]


def _of(checks: Checks, opcode: Opcode, queue: int) -> np.ndarray:
    own = np.flatnonzero((checks.issues["opcode"] == opcode) & (checks.issues["queue"] == queue))
    return own[np.argsort(checks.issues["cycle"][own], kind="stable")]


def _check_wire(
    checks: Checks, sends: np.ndarray, other: Checks, receives: np.ndarray, chip: int, to: int
) -> list[Violation]:
    machine, found = checks.program.machine, list[Violation]()
    if len(sends) != len(receives):
        what = f"sends {len(sends)} vectors, and chip {to} receives {len(receives)} of them"
        return [Violation(9, f"chip {chip}: {checks.at(int(sends[0]))} {what}")]
    sent, got = checks.issues["cycle"][sends], other.issues["cycle"][receives]
    one, two = checks.issues, other.issues
    differs = (one["want0"][sends] != two["tag"][receives]) | (one["detail"][sends] != two["detail"][receives])
    wrong = np.flatnonzero(differs)
    if len(wrong):
        message = f"{other.at(int(receives[wrong[0]]))} receives another vector than was sent"
        found.append(Violation(9, f"chip {to}: {message}"))
    early = np.flatnonzero(got < sent + machine.link_latency)
    if len(early):
        message = f"{other.at(int(receives[early[0]]))} receives a vector that has not arrived for certain"
        found.append(Violation(7, f"chip {to}: {message}"))
    # A vector is in the buffer from the cycle in which it may have arrived until it is received.
    arrived = np.searchsorted(sent + machine.link_period, got, side="right")
    if np.any(arrived - np.arange(len(got)) > machine.links.buffer_vectors):
        found.append(Violation(7, f"chip {to}: the buffer of a link from chip {chip} runs over"))
    return found
