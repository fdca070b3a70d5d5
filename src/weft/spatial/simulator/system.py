"""Runs the programs of many chips together: each until it needs a vector that another has not sent yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.spatial.isa import Opcode
from weft.spatial.simulator.issues import SimulationError, run_queues
from weft.spatial.simulator.run import ChipRun, finish_of
from weft.spatial.system import System


@dataclass(frozen=True)
class SystemRun:
    """What came out of a run of all chips, from the first issue of any of them."""

    cycles: int
    results: Sequence[np.ndarray]
    vectors: int
    """How many vectors were sent."""


def simulate_system(system: System, arrays: Sequence[np.ndarray] | None, *, check: bool = True) -> SystemRun:
    """Run all chips on arguments; without them only the timing is run."""
    issues = [run_queues(program) for program in system.programs]
    first = min((int(each["cycle"].min()) for each in issues if len(each["cycle"])), default=0)
    last = max((finish_of(program, each) for program, each in zip(system.programs, issues, strict=True)), default=0)
    if arrays is None:
        return SystemRun(last - first, [], 0)
    given = dict(zip(system.inputs, arrays, strict=True))
    chips = [
        ChipRun.of(program, [given[port.name] for port in program.inputs], check, each)
        for program, each in zip(system.programs, issues, strict=True)
    ]
    _check_arrivals(system, chips)
    vectors = _run_all(system, chips)
    return SystemRun(last - first, [_gathered(system, chips, name) for name in system.outputs], vectors)


def _check_arrivals(system: System, chips: list[ChipRun]) -> None:
    """A vector that is received before it is certain to be there is not the one that was sent."""
    units = chips[0].program.units
    for wire in system.wires:
        sent = _cycles(chips[wire.chip], Opcode.SEND, units.link(wire.link))
        got = _cycles(chips[wire.to_chip], Opcode.RECEIVE, units.link(wire.to_link))
        both = min(len(sent), len(got))
        if np.any(got[:both] < sent[:both] + system.machine.link_latency):
            raise SimulationError(f"chip {wire.to_chip} receives a vector of chip {wire.chip} before it has arrived")
        if np.any(np.diff(sent) < system.machine.link_period):
            raise SimulationError(f"chip {wire.chip} sends on a link that is still busy")


def _cycles(chip: ChipRun, opcode: Opcode, queue: int) -> np.ndarray:
    return np.sort(chip.issues["cycle"][(chip.issues["opcode"] == opcode) & (chip.issues["queue"] == queue)])


def _run_all(system: System, chips: list[ChipRun]) -> int:
    running = {number: chip.evaluator.run() for number, chip in enumerate(chips)}
    count = 0
    while running:
        done = [number for number, steps in running.items() if next(steps, _END) is _END]
        for number in done:
            del running[number]
        moved = 0
        for wire in system.wires:
            sent = chips[wire.chip].evaluator.sent
            queue, to = (chips[0].program.units.link(each) for each in (wire.link, wire.to_link))
            for key in [each for each in sent if each[0] == queue]:
                chips[wire.to_chip].evaluator.arrived[to, key[1]] = sent.pop(key)
                moved += 1
        count += moved
        if running and not moved and not done:
            raise SimulationError(f"chips {sorted(running)} wait for vectors that no one sends")
    return count


_END = object()


def _gathered(system: System, chips: list[ChipRun], name: str) -> np.ndarray:
    """A result, whose parts may be on different chips."""
    whole: np.ndarray | None = None
    for chip in chips:
        for port, part in zip(chip.program.outputs, chip.results(), strict=True):
            if port.name == name:
                whole = np.zeros_like(part) if whole is None else whole
                own = port.index[port.index >= 0]
                whole.reshape(-1)[own] = part.reshape(-1)[own]
    if whole is None:
        raise SimulationError(f"no chip has the result {name}")
    return whole
