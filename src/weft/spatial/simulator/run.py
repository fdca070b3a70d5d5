"""Runs a program: results bit by bit, cycles exactly, and what each unit did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import GuardError
from weft.spatial.isa import Opcode
from weft.spatial.program import Port, Program
from weft.spatial.simulator.evaluate import Evaluator, initial_bytes
from weft.spatial.simulator.issues import Issues, SimulationError, run_queues
from weft.spatial.simulator.sources import NOWHERE, Cells, Sources, find_sources

_BUSY = {"MEM read": Opcode.READ, "MEM write": Opcode.WRITE, "MXM": Opcode.MULTIPLY, "VXM": Opcode.ALU}
"""Kinds of units whose issues are counted, and what these are."""


@dataclass(frozen=True)
class Simulation:
    """What came out of a run. Cycle 0 is the first issue after the start; the last is when all lanes are done."""

    cycles: int
    results: Sequence[np.ndarray]
    issued: Mapping[str, int]
    """Issues by opcode."""
    busy: Mapping[str, int]
    """Cycles in which a kind of unit issued, summed over its units."""


def simulate(
    program: Program, arrays: Sequence[np.ndarray] | None, *, check: bool = True, origin: int = 0
) -> Simulation:
    """Run a program on arguments; without them only the timing is run.

    With `check`, an operand that is not the vector it should be is an error. Without, it is computed with, as the
    machine would; what is not there at all is an error in any case.
    """
    issues = run_queues(program)
    cycles = _length(program, issues)
    results: list[np.ndarray] = []
    if arrays is not None:
        chip = ChipRun.of(program, arrays, check, issues)
        for _ in chip.evaluator.run():
            raise SimulationError("the program receives a vector, and nothing is linked to it")
        results = chip.results()
    counts = np.bincount(issues["opcode"], minlength=len(Opcode))
    issued = {opcode.name: int(counts[opcode]) for opcode in Opcode if counts[opcode]}
    return Simulation(cycles, results, issued, {kind: int(counts[opcode]) for kind, opcode in _BUSY.items()})


@dataclass(frozen=True)
class ChipRun:
    """A chip that runs a program."""

    program: Program
    issues: Issues
    cells: Cells
    sources: Sources
    evaluator: Evaluator

    @staticmethod
    def of(program: Program, arrays: Sequence[np.ndarray], check: bool, issues: Issues | None = None) -> ChipRun:
        """The state before the first cycle."""
        issues = run_queues(program) if issues is None else issues
        given = [_argument(port, array) for port, array in zip(program.inputs, arrays, strict=True)]
        cells = Cells.of(program)
        sources = find_sources(program, issues, cells, check)
        return ChipRun(
            program, issues, cells, sources, Evaluator(program, issues, sources, initial_bytes(program, given))
        )

    def results(self) -> list[np.ndarray]:
        """What the memory holds at the end."""
        return [_result(self.program, port, self.evaluator, self.sources, self.cells) for port in self.program.outputs]


def _length(program: Program, issues: Issues) -> int:
    """From the first issue until every lane is done."""
    return finish_of(program, issues) - int(issues["cycle"].min()) if len(issues["cycle"]) else 0


def finish_of(program: Program, issues: Issues) -> int:
    """The cycle in which every lane is done: an instruction climbs one tile a cycle."""
    latency = program.machine.latency
    table = {
        Opcode.READ: latency.read,
        Opcode.WRITE: latency.write,
        Opcode.LOAD_WEIGHTS: latency.load_weights,
        Opcode.INSTALL_WEIGHTS: latency.install_weights,
        Opcode.MULTIPLY: latency.multiply,
        Opcode.ACCUMULATE: latency.accumulate,
        Opcode.ALU: latency.alu,
        Opcode.SEND: latency.send,
        Opcode.RECEIVE: latency.receive,
    }
    done = issues["cycle"] + np.array([table[each] for each in Opcode])[issues["opcode"]]
    return int(done.max(initial=0)) + program.machine.lanes.tiles


def _argument(port: Port, array: np.ndarray) -> np.ndarray:
    if array.shape != port.shape or array.dtype != port.dtype:
        given, taken = (f"{each.dtype}{list(each.shape)}" for each in (array, port))
        raise GuardError(f"argument {port.name} is {given}, the program takes {taken}")
    return np.ascontiguousarray(array)


def _result(program: Program, port: Port, evaluator: Evaluator, sources: Sources, cells: Cells) -> np.ndarray:
    places = port.slices.astype(np.int64) * program.machine.slice_words + port.addresses
    roots = sources.root_of_word(places, np.full(len(places), (1 << 31) - 1), cells)
    if np.any(roots == NOWHERE):
        raise SimulationError(f"the program ended and did not write all of {port.name}")
    words = evaluator.bytes_of(roots)
    width = port.dtype.itemsize
    parts = np.zeros((len(port.index), program.machine.width, width), np.uint8)
    parts[port.vectors, :, port.bytes] = words
    vectors = np.ascontiguousarray(parts).view(port.dtype)[..., 0]
    flat = np.zeros(int(np.prod(port.shape)), port.dtype)
    used = port.index >= 0
    flat[port.index[used]] = vectors[used]
    return flat.reshape(port.shape)
