"""Schedules of many chips: the cycles that were predicted, the bits of the graph on one, and links that are proved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8
from weft.spatial.energy import link_use, system_energy
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.isa import Opcode, Units
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.distribute import distribute_graph
from weft.spatial.scheduler.emit import texts_of
from weft.spatial.scheduler.place import map_placed, place_model, placed_system
from weft.spatial.scheduler.shipments import relayed
from weft.spatial.simulator.issues import SimulationError
from weft.spatial.simulator.system import simulate_system
from weft.spatial.system import System, link_between, next_hop, wires_of
from weft.spatial.trace import system_trace
from weft.spatial.verifier.verify import system_violations, violations
from weft.testing.spatial.mutants import MutantCount, count_system_mutants
from weft.testing.spatial.programs import random_program

TSP1 = streaming_machine("tsp1")
LAYOUTS = [(1, 1), (2, 1), (2, 2), (3, 1), (8, 8), (16, 4), (16, 8)]


def distributed(seed: int, chips: int, tensor: int, factor: float = 1) -> System:
    given = random_program(seed)
    return distribute_graph(given.function, TSP1.scaled(factor), given.constants, chips, tensor)


@pytest.mark.parametrize(("chips", "tensor"), LAYOUTS)
@pytest.mark.parametrize("seed", [3, 9])
def test_chips_take_the_predicted_cycles_and_give_the_bits_of_the_graph(seed: int, chips: int, tensor: int) -> None:
    given, system = random_program(seed), distributed(seed, chips, tensor)
    assert not system_violations(system)
    simulated = simulate_system(system, given.inputs)
    assert simulated.cycles == system.cycles
    for result, expected in zip(simulated.results, run(given.function, given.arrays), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.parametrize("factor", [0.5, 2])
def test_other_latencies_are_exact_too(factor: float) -> None:
    system = distributed(3, 4, 2, factor)
    assert not system_violations(system)
    assert simulate_system(system, random_program(3).inputs).cycles == system.cycles


def test_chips_of_a_node_are_linked_to_each_other_and_nodes_to_the_next() -> None:
    wires = wires_of(TSP1, 24)
    assert len({(wire.chip, wire.link) for wire in wires}) == len(wires)
    back = {(wire.to_chip, wire.to_link, wire.chip, wire.link) for wire in wires}
    assert back == {(wire.chip, wire.link, wire.to_chip, wire.to_link) for wire in wires}
    assert sum(wire.chip == 0 for wire in wires) == 7 + 2
    assert link_between(TSP1, 0, 9) is None
    assert next_hop(TSP1, 0, 9) == 8


def test_a_stage_may_lie_across_a_node_and_one_that_is_not_whole() -> None:
    system = distributed(4, 14, 7)
    assert not system_violations(system)
    assert simulate_system(system, random_program(4).inputs).cycles == system.cycles


def test_a_vector_takes_a_hop() -> None:
    assert TSP1.link_latency == 24 + 216 + 12


SYSTEM = distributed(3, 2, 1)
SENDER = next(n for n, each in enumerate(SYSTEM.programs) if np.any(each.instructions["opcode"] == Opcode.SEND))


def changed(chip: int, opcode: Opcode, column: str, by: int) -> System:
    program = SYSTEM.programs[chip]
    rows = program.instructions.copy()
    rows[column][int(np.flatnonzero(rows["opcode"] == opcode)[0])] += by
    programs = list(SYSTEM.programs)
    programs[chip] = replace(program, instructions=rows, texts=texts_of(rows))
    return replace(SYSTEM, programs=programs)


HAZARDS = {
    7: lambda: changed(1 - SENDER, Opcode.RECEIVE, "cycle", -20),
    9: lambda: changed(1 - SENDER, Opcode.RECEIVE, "tag", 1),
    10: lambda: replace(SYSTEM, cycles=SYSTEM.cycles + 1),
}


@pytest.mark.parametrize("invariant", HAZARDS)
def test_a_hazard_of_links_is_caught_by_its_invariant(invariant: int) -> None:
    assert invariant in {each.invariant for each in system_violations(HAZARDS[invariant]())}


def test_a_send_that_no_one_receives_is_caught_and_does_not_run() -> None:
    program = SYSTEM.programs[1 - SENDER]
    rows = program.instructions[program.instructions["opcode"] != Opcode.RECEIVE]
    programs = list(SYSTEM.programs)
    programs[1 - SENDER] = replace(program, instructions=rows, texts=texts_of(rows))
    broken = replace(SYSTEM, programs=programs)
    assert 9 in {each.invariant for each in system_violations(broken)}
    with pytest.raises(SimulationError):
        simulate_system(broken, random_program(3).inputs)


def test_a_program_that_needs_another_chip_is_refused_for_one() -> None:
    found = violations(SYSTEM.programs[SENDER])
    assert any(each.invariant == 9 and "C2C link" in each.message for each in found)


def test_energy_links_and_trace_of_a_case_that_is_counted_by_hand() -> None:
    """Three rows of 320 channels on chip 0 are converted, sent to chip 1 and converted there."""
    build = Int8Builder("hop", {"x": Tensor(i8, (3, 320))})
    ones = np.ones(320, np.float32)
    with build.on(0):
        middle = build.to_int8(build.scaled(build.argument("x"), ones))
    with build.on(1):
        last = build.to_int8(build.scaled(middle, ones))
    function = build.finish([last])
    system = placed_system(place_model(map_placed(function, TSP1, build.constants), TSP1, 2))
    assert not system_violations(system)
    x = np.arange(960).reshape(3, 320).astype(np.int8)
    run_ = simulate_system(system, [x])
    assert run_.vectors == 3 and run_.cycles == system.cycles
    np.testing.assert_array_equal(run_.results[0], x)
    # A layer reads three rows and four bytes of a constant, which each turn reads once, and writes four copies.
    energy = system_energy(system)
    assert energy["C2C"] == pytest.approx(3 * 328 * 40e-12)
    assert energy["VXM"] == pytest.approx(2 * 3 * 3 * 320 * 0.1e-12)
    assert energy["MXM"] == 0
    ((wire, use),) = link_use(system).items()
    assert (wire.chip, wire.to_chip) == (0, 1)
    assert use == pytest.approx(3 * 24 / system.cycles)
    events = system_trace(system)["traceEvents"]
    sends = [each for each in events if each["ph"] == "X" and each["name"].startswith("SEND")]
    receives = [each for each in events if each["ph"] == "X" and each["name"].startswith("RECEIVE")]
    assert [each["pid"] for each in sends] == [0] and [each["pid"] for each in receives] == [1]
    assert (sends[0]["args"]["count"], sends[0]["args"]["period"]) == (3, 24)
    assert receives[0]["args"]["cycle"] - sends[0]["args"]["cycle"] in (252, 253)
    counts = [each["args"]["links"] for each in events if each["ph"] == "C"]
    assert counts == [1, 1, 1, 0]


def test_harmful_mutants_of_links_are_caught() -> None:
    given, count = random_program(3), MutantCount()
    count_system_mutants(SYSTEM, given.inputs, run(given.function, given.arrays), 30, 0, count)
    assert count.harmful > 10
    assert not count.missed, count.missed


def test_stages_that_do_not_divide_the_chips_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="4 chips cannot be stages of 3"):
        distributed(3, 4, 3)


def test_links_have_queues_of_their_own() -> None:
    units = Units(TSP1)
    assert units.end == TSP1.control.queues
    assert units.name(units.link(3)) == "C2C link 3"


def stages(rows: int, layers: int) -> tuple[Int8Builder, np.ndarray]:
    rng = np.random.default_rng(rows)
    build = Int8Builder("stages", {"x": Tensor(i8, (rows, 330))})
    value = build.argument("x")
    for _ in range(layers):
        made = build.scaled(build.dot(value, rng.integers(-9, 9, (330, 330)).astype(np.int8)), np.full(330, 0.01, "f4"))
        value = build.to_int8(made)
    build.finish([value])
    return build, rng.integers(-128, 128, (rows, 330)).astype(np.int8)


@pytest.mark.parametrize(("chips", "factor"), [(4, 1), (4, 2), (5, 0.5), (10, 1)])
def test_chips_with_nothing_to_do_hand_on_a_share_of_what_is_sent(chips: int, factor: float) -> None:
    build, given = stages(60, 4)
    system = distribute_graph(build.function, TSP1.scaled(factor), build.constants, chips)
    assert not system_violations(system)
    simulated = simulate_system(system, [given])
    assert simulated.cycles == system.cycles
    np.testing.assert_array_equal(simulated.results[0], run(build.function, [given, *build.constants.values()])[0])
    sent = 120 * 3  # straight, and some of them twice
    assert sent < simulated.vectors < 2 * sent


@pytest.mark.parametrize("vectors", [1, 14, 27, 28, 100, 1536])
@pytest.mark.parametrize("relays", [0, 1, 2, 6])
def test_what_is_handed_on_arrives_with_the_rest(vectors: int, relays: int) -> None:
    after = 14
    straight, count = relayed(vectors, relays, after)
    assert count <= relays and straight <= vectors
    assert count * (straight - after) >= vectors - straight
    assert count or vectors <= after + 1 or not relays


def test_links_that_hold_fewer_vectors_than_wait_in_them_are_refused() -> None:
    given = random_program(0)
    with pytest.raises(UnsupportedError, match="holds 9 vectors, and up to 10 wait"):
        distribute_graph(given.function, streaming_machine("tsp1", {"links.buffer_vectors": 9}), given.constants, 2)
