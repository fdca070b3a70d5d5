"""Weights lie in one half where that does, in as many rows as they have, and beside constants where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.ir.types import Tensor, i8
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.isa import Opcode
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.program import Program, expanded
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.memory_map import CapacityError
from weft.spatial.scheduler.weight_places import WeightPlaces
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations

TSP1 = streaming_machine("tsp1")


def product(rows: int, k: int, n: int, machine: StreamingMachine = TSP1, layers: int = 1) -> Program:
    """Products one after another, exact in cycles and bits."""
    rng = np.random.default_rng(rows + k + n)
    build = Int8Builder("products", {"x": Tensor(i8, (rows, k))})
    given, value = rng.integers(-128, 128, (rows, k)).astype(np.int8), build.argument("x")
    for _ in range(layers):
        ins = int(build.builder.tensor(value).shape[1])  # type: ignore[arg-type]
        weights = rng.integers(-128, 128, (ins, n)).astype(np.int8)
        made = build.scaled(build.dot(value, weights), np.full(n, 40 / (np.sqrt(ins) * 5500), np.float32))
        value = build.to_int8(build.add(made, rng.uniform(-9, 9, n).astype(np.float32)))
    build.finish([value])
    program = compile_graph(build.function, machine, build.constants)
    assert not violations(program)
    simulated = simulate(program, [given])
    assert simulated.cycles == program.cycles
    expected = run(build.function, [given, *build.constants.values()])[0]
    np.testing.assert_array_equal(simulated.results[0], expected, strict=True)
    return program


def held(program: Program) -> int:
    """Words of weights that memory holds."""
    slices = program.image.slices % program.machine.memory.slices_per_half
    first = program.machine.memory.slices_per_half - program.machine.matrix.load_streams
    return int((slices >= first).sum())


@pytest.mark.parametrize(("n", "blocks"), [(640, 2), (960, 4), (1280, 4)])
def test_two_blocks_of_columns_are_computed_in_halves_of_their_own(n: int, blocks: int) -> None:
    """The third of three is computed by both."""
    assert held(product(100, 320, n)) == blocks * 320


@pytest.mark.parametrize(("k", "rows"), [(64, 64), (65, 80), (384, 384), (320, 320)])
def test_of_a_tile_those_rows_are_loaded_that_hold_something(k: int, rows: int) -> None:
    program = product(40, k, 640)
    assert held(program) == 2 * rows
    loads = expanded(program.instructions)["opcode"] == Opcode.LOAD_WEIGHTS
    assert loads.sum() == 2 * 2 * rows // 16


@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_more_weights_than_the_edge_holds_lie_beside_constants(factor: float) -> None:
    small = streaming_machine("tsp1", {"memory.bank_words": 128}).scaled(factor)
    program = product(120, 1280, 1280, small, layers=2)
    slices = program.image.slices % small.memory.slices_per_half
    beside = (slices >= 16) & (slices < 28) & (program.image.tags < len(slices))
    assert beside.sum() > 100
    roomy = product(120, 1280, 1280, TSP1.scaled(factor), layers=2)
    # Layers of the roomy one overlap: what waits for constants to be read is seen.
    assert program.cycles <= roomy.cycles * 1.03


def test_weights_that_fit_nowhere_say_how_many_there_are() -> None:
    with pytest.raises(CapacityError, match="of each of 28 slices: tile"):
        product(20, 1280, 1280, streaming_machine("tsp1", {"memory.bank_words": 64}), layers=3)


def test_a_tile_beside_constants_is_found_again_when_these_are_not_read() -> None:
    places = WeightPlaces(TSP1, 16, scarce=True)
    first = places.find(0, 320, True, (10, 100), 100)
    assert first is not None and first.beside_constants and first.addresses[0] == 80
    assert places.find(0, 320, True, (10, 80), 100) is first
    other = places.find(0, 320, False, (10, 80), 100)
    assert other is not None and not other.beside_constants
    assert places.find(0, 320, True, (10, 80), 100) is other
    full = places.find(1, 320, False, (10, 80), 50)
    assert full is not None and full.beside_constants, "there is no other room"
    assert places.find(2, 320, False, (50, 60), 50) is None


def test_the_edge_is_not_filled_before_the_slices_of_constants() -> None:
    """Tiles there have a quarter of their rows at the edge: with none left, the room beside constants is lost."""
    small = streaming_machine("tsp1", {"memory.bank_words": 64})
    places = WeightPlaces(small, 16, True)
    top, held = small.slice_words, 0
    while (place := places.find(held, 320, False, (0, top), small.slice_words)) is not None:
        held += 1
        if place.beside_constants:
            top = int(place.addresses[0])
    assert held >= 10, "of 28 slices of 128 words, 16 of which have 20 of a tile: 11 at the most"
