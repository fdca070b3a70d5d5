"""Invariant 4: ports, banks and versions of words."""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import Opcode
from weft.spatial.verifier.violations import Checks


def check_memory(checks: Checks) -> None:
    """Every access of every slice."""
    machine, issues = checks.program.machine, checks.issues
    accesses = checks.of(Opcode.READ, Opcode.WRITE)
    address = issues["address"][accesses]
    outside = (address < 0) | (address >= machine.slice_words)
    checks.refuse(4, accesses[outside], f"has an address outside of the {machine.slice_words} words of a slice")
    accesses = accesses[~outside]
    _check_banks(checks, accesses)
    _check_versions(checks, accesses)


def _check_banks(checks: Checks, accesses: np.ndarray) -> None:
    machine, issues = checks.program.machine, checks.issues
    bank = issues["address"][accesses] // machine.memory.bank_words
    keys = (issues["queue"][accesses].astype(np.int64) * machine.memory.banks + bank) << 40
    keys = keys + issues["cycle"][accesses]
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    checks.refuse(4, accesses[order[1:][same]], "uses a bank that its slice uses already in this cycle")


def _check_versions(checks: Checks, accesses: np.ndarray) -> None:
    """Each read finds the vector it is meant to read: walk each word's accesses in the order of time."""
    program, issues = checks.program, checks.issues
    machine = program.machine
    parts = [program.image, *program.inputs]
    words = machine.slice_words
    start = np.concatenate([part.slices.astype(np.int64) * words + part.addresses for part in parts])
    is_write = issues["opcode"][accesses] == Opcode.WRITE
    place = np.concatenate([start, issues["queue"][accesses].astype(np.int64) * words + issues["address"][accesses]])
    # A word is new when the write is done, and a read in that very cycle finds it.
    time = np.concatenate(
        [np.full(len(start), -1), issues["cycle"][accesses] + np.where(is_write, machine.latency.write, 0)]
    )
    writes = np.concatenate([np.ones(len(start), bool), is_write])
    # A word is a byte of a vector: which one, a write and a read say alike.
    byte = issues["detail"][accesses] % 16
    tag = np.concatenate(
        [
            program.image.tags * 16,
            *(port.tags * 16 + port.bytes for port in program.inputs),
            np.where(is_write, issues["want0"][accesses], issues["tag"][accesses]) * 16 + byte,
        ]
    )
    issue = np.concatenate([np.full(len(start), -1), accesses])
    order = np.lexsort((~writes, time, place))
    place, writes, tag, issue = place[order], writes[order], tag[order], issue[order]
    last = np.maximum.accumulate(np.where(writes, np.arange(len(order)), -1))
    known = (last >= 0) & (place[np.maximum(last, 0)] == place)
    reads = ~writes
    checks.refuse(4, issue[reads & ~known], "reads a word that no one has written")
    checks.refuse(
        4, issue[reads & known & (tag[np.maximum(last, 0)] != tag)], "reads another vector than was written for it"
    )
    for port in program.outputs:
        _check_output(
            checks,
            port.slices.astype(np.int64) * words + port.addresses,
            port.tags * 16 + port.bytes,
            place,
            writes,
            tag,
            port.name,
        )


def _check_output(
    checks: Checks,
    places: np.ndarray,
    tags: np.ndarray,
    place: np.ndarray,
    writes: np.ndarray,
    tag: np.ndarray,
    name: str,
) -> None:
    at = np.searchsorted(place[writes], places, side="right") - 1
    found = (at >= 0) & (place[writes][np.maximum(at, 0)] == places)
    right = found & (tag[writes][np.maximum(at, 0)] == tags)
    if not right.all():
        wrong = int(places[~right][0])
        unit, address = divmod(wrong, checks.program.machine.slice_words)
        checks.say(
            4, f"{checks.program.units.name(unit)}: at the end, address {address} does not hold a vector of {name}"
        )
