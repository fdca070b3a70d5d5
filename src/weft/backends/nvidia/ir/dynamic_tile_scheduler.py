"""The dynamic tile scheduler: persistent blocks draw tiles; whichever block is free takes the next one."""

from __future__ import annotations

from weft.tile import dialect as tile

DYNAMIC = "nvidia.dynamic"
"""On a loop over programs: each block draws the next number."""


NUMBERS = 2
"""Numbers that consumers have not taken yet."""


_NUMBER_BYTES = 24
"""Of a number and its two barriers."""


def dynamic_bytes(kernel: tile.KernelOp) -> int:
    """The shared memory that numbers take."""
    return 0 if kernel.counter is None else NUMBERS * _NUMBER_BYTES
