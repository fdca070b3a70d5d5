"""The seed of a function's random numbers inside of branches and turns, where torch takes it for a constant.

`func/random_numbers` marks those constants; the import reads the argument in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.types import i64

OUTER = "weft.outer"
"""What the metadata of a constant in a region calls the argument of the graph around that it is."""
_STEP = 0x9E3779B97F4A7C15 - 2**64
"""Seeds of turns lie that far apart, and those of turns inside of turns are not a multiple of it apart."""


def seed_inside(b: ImportBuilder, seed: SSAValue, turns: Sequence[SSAValue]) -> SSAValue:
    """A seed where it is read, inside of loops of which these are the turns: each has one of its own."""
    for turn in turns:
        moved = b.emit("add", seed, b.emit("mul", turn, b.number(_STEP, i64)))
        seed = b.emit("mul", moved, b.number(_STEP, i64))
    return seed
