"""Many chips: a program for each on one clock, and the wires between their links.

Chips of a node are linked to each other, each pair by a wire of its own, and a chip of a node to the chips of the same
number in the next nodes. There is no routing and no back-pressure: the n-th vector that a link sends is the n-th that
the other end receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.errors import UnsupportedError
from weft.spatial.machine import StreamingMachine
from weft.spatial.program import Program


@dataclass(frozen=True)
class Wire:
    """One direction of a connection: from a link of a chip to a link of another."""

    chip: int
    link: int
    to_chip: int
    to_link: int


@dataclass(frozen=True)
class System:
    """The programs of all chips. Cycle 0 is the same on all of them."""

    machine: StreamingMachine
    programs: Sequence[Program]
    wires: Sequence[Wire]
    inputs: Sequence[str]
    """The arguments, in order; each chip that reads one has a port of this name."""
    outputs: Sequence[str]
    """The results, in order; each chip that has a part of one has a port of this name."""
    cycles: int
    bounds: Mapping[str, int] = field(default_factory=dict[str, int])


def wires_of(machine: StreamingMachine, chips: int) -> list[Wire]:
    """The wires of so many chips: all to all in a node, and nodes to the nodes after and before them."""
    per_node, half = machine.network.chips_per_node, machine.links.count // 2
    if per_node - 1 > half or machine.network.global_links > machine.links.count - half:
        raise UnsupportedError("a chip has not enough links for its node", hint="raise links.count")
    # A vector is received when it is certain to have arrived; it may be there right after it was sent.
    waiting = (machine.link_latency + 1 - machine.link_period) // machine.link_period + 1
    if chips > 1 and machine.links.buffer_vectors < waiting:
        raise UnsupportedError(
            f"a link holds {machine.links.buffer_vectors} vectors, and up to {waiting} wait in it to be received",
            hint=f"links.buffer_vectors is at least {waiting}, or links.latency_mean is lower",
        )
    found: list[Wire] = []
    for chip in range(chips):
        for other in range(chips):
            if link := link_between(machine, chip, other):
                found.append(Wire(chip, link[0], other, link[1]))
    return found


def link_between(machine: StreamingMachine, chip: int, other: int) -> tuple[int, int] | None:
    """The links of two chips that a wire connects; None where there is no wire.

    Local links are at the west edge, global ones at the east.
    """
    per_node, half = machine.network.chips_per_node, machine.links.count // 2
    if chip == other:
        return None
    if chip // per_node == other // per_node:
        return (other - chip) % per_node - 1, (chip - other) % per_node - 1
    apart = other // per_node - chip // per_node
    if chip % per_node != other % per_node or 2 * abs(apart) > machine.network.global_links:
        return None
    return (half + 2 * abs(apart) - 2 + (apart < 0), half + 2 * abs(apart) - 2 + (apart > 0))


def next_hop(machine: StreamingMachine, chip: int, to: int) -> int:
    """The chip that a vector goes to next: across nodes first, to the chip of the same number, then in the node."""
    per_node, reach = machine.network.chips_per_node, machine.network.global_links // 2
    apart = to // per_node - chip // per_node
    return chip + max(-reach, min(reach, apart)) * per_node if apart else to
