"""When copies between a device and its host begin, and when they are awaited, so that computing hides them.

A device copies in each direction one after the other while it computes. A copy out begins as soon as there is
something to copy, and is awaited when it should have ended and nothing reads the original any more: then its memory is
free. A copy back begins as late as it can and still end in time, since its memory is taken from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class CopyOut:
    """What is copied: made by one step, read last by another, and how long it takes to copy it."""

    made: int
    last: int
    seconds: float


@dataclass(frozen=True)
class CopyBack:
    """What is copied back for the step that first reads it."""

    first: int
    seconds: float


def waits_for_copies_out(steps: Sequence[float], copies: Sequence[CopyOut]) -> list[int]:
    """The steps after which copies are awaited, of steps that take so many seconds each."""
    ends = list(accumulate(steps))
    waits, free = [0] * len(copies), 0.0
    for number in sorted(range(len(copies)), key=lambda n: copies[n].made):
        copy = copies[number]
        free = max(free, ends[copy.made]) + copy.seconds
        later = (step for step in range(copy.last, len(steps)) if ends[step] >= free)
        waits[number] = next(later, len(steps) - 1)
    return waits


def starts_of_copies_back(steps: Sequence[float], copies: Sequence[CopyBack]) -> list[int]:
    """The steps before which copies begin, of steps that take so many seconds each."""
    begins = [0.0, *accumulate(steps)]
    starts, free = [0] * len(copies), begins[-1]
    for number in sorted(range(len(copies)), key=lambda n: copies[n].first, reverse=True):
        copy = copies[number]
        free = min(free, begins[copy.first]) - copy.seconds
        earlier = (step for step in range(copy.first, -1, -1) if begins[step] <= free)
        starts[number] = next(earlier, 0)
    return starts
