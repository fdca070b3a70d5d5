"""The verifier refuses schedules that were tampered with, by the right invariant, and names unit, cycle and op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.spatial.isa import CHAINED, EMITS, Opcode
from weft.spatial.machine import streaming_machine
from weft.spatial.program import MOVING, Image, Program
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.emit import texts_of
from weft.spatial.verifier.verify import ScheduleError, verify, violations
from weft.testing.spatial.mutants import MutantCount, count_mutants
from weft.testing.spatial.programs import random_program

TSP1 = streaming_machine("tsp1")
GIVEN = random_program(7)
PROGRAM = compile_graph(GIVEN.function, TSP1, GIVEN.constants)


def changed(opcode: Opcode, column: str, change: Callable[[int], int]) -> Program:
    rows = PROGRAM.instructions.copy()
    first = int(np.flatnonzero(rows["opcode"] == opcode)[0])
    rows[column][first] = change(int(rows[column][first]))
    return replace(PROGRAM, instructions=rows, texts=texts_of(rows))


def twice() -> Program:
    """Every register that a slice drives is driven by a second one of the same place."""
    rows = PROGRAM.instructions
    weights = [queue for queue in range(28, 44) if queue in rows["queue"]]
    one = rows[(rows["queue"] == weights[0]) & (rows["opcode"] == Opcode.READ)][:1].copy()
    one["queue"] = weights[1] if TSP1.hop(weights[1]) == TSP1.hop(weights[0]) else weights[0]
    second = rows[(rows["queue"] == weights[1]) & (rows["opcode"] == Opcode.READ)][:1]
    made = rows.copy()
    made["result"][(rows["queue"] == weights[1]) & (rows["cycle"] == second["cycle"][0])] = one["result"][0]
    return replace(PROGRAM, instructions=made)


def moved_data() -> Program:
    image = PROGRAM.image
    addresses = image.addresses.copy()
    addresses[0] = addresses[16]
    return replace(PROGRAM, image=Image(image.slices, addresses, image.tags, image.data))


HAZARDS = {
    1: lambda: replace(PROGRAM, texts=PROGRAM.texts[1:]),
    2: lambda: changed(Opcode.MULTIPLY, "source0", lambda stream: stream - 1),
    3: twice,
    4: lambda: changed(Opcode.READ, "address", lambda address: address + TSP1.memory.bank_words),
    5: lambda: changed(Opcode.LOAD_WEIGHTS, "address", lambda row: row + 1),
    6: lambda: changed(Opcode.ALU, "source0", lambda _: CHAINED + 15),
    8: moved_data,
    10: lambda: replace(PROGRAM, cycles=PROGRAM.cycles + 1),
}


@pytest.mark.parametrize("invariant", HAZARDS)
def test_a_hazard_is_caught_by_its_invariant(invariant: int) -> None:
    found = violations(HAZARDS[invariant]())
    assert invariant in {each.invariant for each in found}


def test_sums_that_take_each_others_products_are_caught() -> None:
    """Two of a pass that is not the last change places in time, and nothing leaves the accumulators at another time."""
    rows = PROGRAM.instructions
    silent = (rows["opcode"] == Opcode.ACCUMULATE) & (rows["detail"] & EMITS == 0) & (rows["count"] > 1)
    chosen = int(np.flatnonzero(silent)[0])
    made = np.concatenate([rows[:chosen], *([rows[chosen : chosen + 1]] * 3), rows[chosen + 1 :]])
    for column, step in MOVING.items():
        later = chosen + 1 if column == "cycle" else chosen
        made[column][later] += rows[step][chosen]
        made[column][chosen + 2] += 2 * rows[step][chosen]
    made["count"][chosen : chosen + 2] = 1
    made["count"][chosen + 2] -= 2
    made = made[made["count"] > 0]
    found = violations(replace(PROGRAM, instructions=made, texts=texts_of(made)))
    assert any("takes another product than it is meant to" in each.message for each in found)


def test_a_violation_names_unit_cycle_and_op() -> None:
    with pytest.raises(ScheduleError, match=r"MXM plane \d activations, cycle \d+: MULTIPLY of graph\.cast at"):
        verify(changed(Opcode.MULTIPLY, "source0", lambda stream: stream - 1))


def test_all_harmful_mutants_are_caught() -> None:
    count = MutantCount()
    for seed in (0, 7):
        given = random_program(seed)
        program = compile_graph(given.function, TSP1, given.constants)
        assert not violations(program)
        count_mutants(program, given.inputs, run(given.function, given.arrays), 25, seed, count)
    assert count.harmful > 25
    assert not count.missed, count.missed


def test_a_read_that_is_missing_is_named_whatever_it_was_for() -> None:
    given = random_program(910044)
    program = compile_graph(given.function, TSP1, given.constants)
    reads = np.flatnonzero(program.instructions["opcode"] == Opcode.READ)
    for number in reads.tolist():
        rows = np.delete(program.instructions, number)
        found = violations(replace(program, instructions=rows, texts=texts_of(rows)))
        assert 2 in {each.invariant for each in found}
