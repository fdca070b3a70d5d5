"""What a program spends: how often each kind of unit acts, times what an action takes.

The table is for the order of magnitude only; see `energy` of a machine's description.
"""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import Opcode
from weft.spatial.program import Program
from weft.spatial.system import System, Wire


def energy_of(program: Program) -> dict[str, float]:
    """Joules by kind of unit."""
    machine, rows = program.machine, program.instructions
    counts = np.bincount(rows["opcode"], weights=rows["count"], minlength=len(Opcode))
    table = machine.energy
    accesses = counts[Opcode.READ] + counts[Opcode.WRITE]
    return {
        "MXM": counts[Opcode.MULTIPLY] * machine.tile_bytes * table.multiply_accumulate * 1e-12,
        "MEM": accesses * machine.width * table.memory_byte * 1e-12,
        "C2C": counts[Opcode.SEND] * machine.links.frame_bytes * table.link_byte * 1e-12,
        "VXM": counts[Opcode.ALU] * machine.width * table.alu_lane * 1e-12,
    }


def system_energy(system: System) -> dict[str, float]:
    """Joules of all chips, by kind of unit."""
    parts = [energy_of(program) for program in system.programs]
    return {kind: sum(each[kind] for each in parts) for kind in parts[0]}


def link_use(system: System) -> dict[Wire, float]:
    """For each wire that carries something, the part of the time in which it does."""
    found: dict[Wire, float] = {}
    for wire in system.wires:
        program = system.programs[wire.chip]
        rows = program.instructions
        sends = (rows["opcode"] == Opcode.SEND) & (rows["queue"] == program.units.link(wire.link))
        if sends.any():
            found[wire] = int(rows["count"][sends].sum()) * system.machine.link_period / system.cycles
    return found
