"""What to keep in the host's memory, and what to compute again, so that a device keeps no more than a limit.

Copies run beside what is computed, so they take time only beyond what the forward, or the backward, takes anyway; to
compute something again always does. Of each answer to a `RecomputeProblem`, as much is offloaded as is needed, what is
made first before all else: there is the most time until it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from weft.passes.remat.recompute_problem import Choice, RecomputeProblem

_HIDDEN = 0.8
"""The share of the time to compute that copies can hide behind."""
_BACKWARD = 2.0
"""How much longer a backward takes than its forward."""
_SECONDS_A_COPY = 20e-6
LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Machine:
    """What a device does in a second: bytes of its own memory, and bytes to the host's or back."""

    bandwidth: float
    host_bandwidth: float


@dataclass(frozen=True)
class Offloading:
    """An answer, and which of what it keeps is offloaded."""

    choice: Choice
    offloaded: frozenset[int]
    bytes: int
    """What the device keeps."""
    seconds: float
    """What it takes beyond a step that keeps everything."""


def quickest_within(
    problem: RecomputeProblem, answers: Iterable[Choice], movable: Collection[int], limit: int, machine: Machine
) -> Offloading | None:
    """The quickest of what is within a limit; where nothing is, what keeps least; None where there are no answers."""
    found = [offloading(problem, answer, movable, limit, machine) for answer in answers]
    return min(found, key=lambda each: (max(each.bytes - limit, 0), each.seconds), default=None)


def offloading(
    problem: RecomputeProblem, choice: Choice, movable: Collection[int], limit: int, machine: Machine
) -> Offloading:
    """An answer of which so much is offloaded that the device keeps no more than a limit, as far as it can be."""
    left, moved = choice.bytes, list[int]()
    for number in sorted(choice.kept.intersection(movable)):
        size = problem.values[number].bytes
        if left > limit and size >= LEAST_BYTES:
            moved.append(number)
            left -= size
    for number in sorted(moved, key=lambda n: problem.values[n].bytes):  # what turned out not to be needed
        if left + problem.values[number].bytes <= limit:
            moved.remove(number)
            left += problem.values[number].bytes
    forward = sum(value.work for value in problem.values[: problem.forward]) / machine.bandwidth
    transfer = sum(problem.values[number].bytes for number in moved) / machine.host_bandwidth
    exposed = sum(max(0.0, transfer - _HIDDEN * each) for each in (forward, _BACKWARD * forward))
    again = choice.work / machine.bandwidth
    return Offloading(choice, frozenset(moved), left, again + exposed + 2 * _SECONDS_A_COPY * len(moved))
