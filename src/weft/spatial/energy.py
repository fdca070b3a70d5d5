"""What a program spends: how often each kind of unit acts, times what an action takes.

The table is for the order of magnitude only; see `energy` of a machine's description.
"""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import Opcode
from weft.spatial.program import Program


def energy_of(program: Program) -> dict[str, float]:
    """Joules by kind of unit."""
    machine, rows = program.machine, program.instructions
    counts = np.bincount(rows["opcode"], weights=rows["count"], minlength=len(Opcode))
    table = machine.energy
    accesses = counts[Opcode.READ] + counts[Opcode.WRITE]
    return {
        "MXM": counts[Opcode.MULTIPLY] * machine.tile_bytes * table.multiply_accumulate * 1e-12,
        "MEM": accesses * machine.width * table.memory_byte * 1e-12,
        "VXM": counts[Opcode.ALU] * machine.width * table.alu_lane * 1e-12,
    }
