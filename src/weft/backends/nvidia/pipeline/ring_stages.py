"""How many stages each ring of a kernel of dots has, by the shared memory there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.backends.nvidia.ir.rings import BARRIER_BYTES
from weft.backends.nvidia.pipeline.operand_copies import Operands

RingStages: TypeAlias = Callable[[Operands, int, int], "list[int] | None"]
"""The stages of each ring, by the room there is and the most that are of use; None where that is not enough."""


def equal_stages(ahead: bool, operands: Operands, room: int, most: int) -> list[int] | None:
    """As many stages as there is room for, the same number in all rings but those of what is held.

    Those have a second where what the next program holds comes `ahead`.
    """
    bytes_of, held, moving = _ring_bytes(operands)
    stages = min(most, (room - held) // moving) if moving else 0
    if stages < 2:
        return None
    counts = [1 if is_held else stages for is_held in operands.held]
    return _with_seconds(counts, bytes_of, [ahead and each for each in operands.held], room - held - stages * moving)


def single_stages(operands: Operands, room: int, most: int) -> list[int] | None:
    """A stage of each ring, and another of those that come first in an iteration.

    What is next of one ring comes while dots read the others, so there must be several.
    """
    bytes_of, held, moving = _ring_bytes(operands)
    if room < held + moving or operands.held.count(False) < 2:
        return None
    counts = [1 for _ in operands.rings]
    return _with_seconds(counts, bytes_of, [not each for each in operands.held], room - held - moving)


def _with_seconds(counts: list[int], bytes_of: list[int], wanted: list[bool], room: int) -> list[int]:
    """A second stage of the rings that are wanted, in their order, as far as there is room."""
    for number, size in enumerate(bytes_of):
        if wanted[number] and size <= room:
            counts[number], room = 2, room - size
    return counts


def _ring_bytes(operands: Operands) -> tuple[list[int], int, int]:
    """What a stage of each ring takes, one of all that hold, and one of all others."""
    bytes_of = [sum(slot.bytes for slot in slots) + BARRIER_BYTES for slots in operands.rings]
    held = sum(size for size, is_held in zip(bytes_of, operands.held, strict=True) if is_held)
    return bytes_of, held, sum(bytes_of) - held
