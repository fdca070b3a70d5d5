"""Decoders over many chips: split as they are in one piece, bit by bit; what fits, and what a token takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8
from weft.spatial.decoder import (
    DecoderBuilder,
    DecoderShape,
    LayerWeights,
    Placement,
    columns,
    in_stages,
    tensor_parallel,
    whole,
)
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.isa import Opcode
from weft.spatial.machine import streaming_machine
from weft.spatial.rack_page import rack_page
from weft.spatial.racks import fill_stages, hop_cycles, plan_racks, schedule_layer
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.memory_map import CapacityError
from weft.spatial.scheduler.place import map_placed, place_model, placed_system
from weft.spatial.scheduler.regions import assign_regions
from weft.spatial.simulator.run import simulate
from weft.spatial.simulator.system import simulate_system
from weft.spatial.verifier.verify import system_violations, violations

TSP1 = streaming_machine("tsp1")
SMALL = DecoderShape("small", 640, 4, 2, 64, 960, 2, 700)
EXPERTS = DecoderShape("experts", 640, 4, 2, 64, 320, 2, 700, experts=4, chosen=2)


def gemv(rows: int, sizes: tuple[int, ...]) -> tuple[Int8Builder, list[np.ndarray]]:
    rng = np.random.default_rng(rows)
    build = Int8Builder("gemv", {"x": Tensor(i8, (rows, sizes[0]))})
    value = build.argument("x")
    for k, n in pairwise(sizes):
        scale = np.full(n, 40 / (np.sqrt(k) * 5500), np.float32)
        product = build.scaled(build.dot(value, rng.integers(-128, 128, (k, n)).astype(np.int8)), scale)
        value = build.to_int8(build.add(product, rng.uniform(-9, 9, n).astype(np.float32)))
    build.finish([value])
    return build, [rng.integers(-128, 128, (rows, sizes[0])).astype(np.int8)]


@pytest.mark.parametrize(("rows", "sizes"), [(1, (700, 1300, 641)), (4, (330, 1290)), (16, (640, 640))])
@pytest.mark.parametrize("factor", [1, 2])
def test_products_of_few_rows_are_exact(rows: int, sizes: tuple[int, ...], factor: float) -> None:
    build, given = gemv(rows, sizes)
    program = compile_graph(build.function, TSP1.scaled(factor), build.constants)
    assert not violations(program)
    simulated = simulate(program, given)
    assert simulated.cycles == program.cycles
    expected = run(build.function, [*given, *build.constants.values()])[0]
    np.testing.assert_array_equal(simulated.results[0], expected, strict=True)


def test_weights_that_are_slow_to_install_are_waited_for() -> None:
    build, given = gemv(3, (40, 1700, 60))
    program = compile_graph(build.function, streaming_machine("tsp1", {"latency.install_weights": 28}), build.constants)
    assert not violations(program)
    expected = run(build.function, [*given, *build.constants.values()])[0]
    np.testing.assert_array_equal(simulate(program, given).results[0], expected, strict=True)


def test_a_product_of_one_row_is_as_fast_as_its_weights() -> None:
    build, _ = gemv(1, (3840, 3840))
    program = compile_graph(build.function, TSP1, build.constants)
    assert program.bounds["weights"] == 5 * 144
    # Of 21 cycles one installs; and once the pipeline is filled and drained.
    assert program.cycles < 21 / 20 * program.bounds["weights"] + 200


def test_a_tile_of_few_rows_is_loaded_in_few_cycles() -> None:
    build, _ = gemv(1, (3 * 320 + 16, 640))
    program = compile_graph(build.function, TSP1, build.constants)
    rows = program.instructions
    assert int(rows["count"][rows["opcode"] == Opcode.LOAD_WEIGHTS].sum()) == 2 * (3 * 20 + 1)


def test_planes_share_the_passes_of_a_single_block() -> None:
    build, arguments = gemv(1, (5 * 320 + 16, 320))
    program = compile_graph(build.function, TSP1, build.constants)
    assert program.cycles < 160, "one plane alone takes 192"
    assert not violations(program)
    expected = run(build.function, [*arguments, *build.constants.values()])[0]
    np.testing.assert_array_equal(simulate(program, arguments).results[0], expected, strict=True)


def check(shape: DecoderShape, placement: Placement, chips: int, rows: int = 1, in_turn: bool = False) -> None:
    weights = LayerWeights(shape)
    one = DecoderBuilder([(weights, whole(shape))], 20, rows)
    expected = run(one.run(), [*one.arguments().values(), *one.build.constants.values()])[0]
    builder = DecoderBuilder([(weights, placement)], 20, rows)
    model = map_placed(builder.run(), TSP1, builder.build.constants)
    system = placed_system(place_model(model, TSP1, chips, in_turn))
    assert not system_violations(system)
    simulated = simulate_system(system, list(builder.arguments().values()))
    assert simulated.cycles == system.cycles
    parts = np.concatenate(simulated.results[: len(placement.down)], axis=1)
    np.testing.assert_array_equal(parts, expected, strict=True)


def test_a_layer_that_chips_share_has_the_bits_of_one_piece() -> None:
    check(SMALL, tensor_parallel(SMALL, range(2), 320), 2)


def test_a_batch_on_a_number_of_chips_that_does_not_divide() -> None:
    check(SMALL, tensor_parallel(SMALL, range(3), 320), 3, rows=4)


def test_stages_one_after_another_across_nodes() -> None:
    check(SMALL, in_stages(SMALL, range(5, 12), 320), 16, in_turn=True)


def test_experts_on_chips_of_their_own() -> None:
    check(EXPERTS, tensor_parallel(EXPERTS, range(2), 320, range(8, 12)), 16)


def test_channels_are_joined_on_one_chip_too() -> None:
    rng = np.random.default_rng(7)
    build = Int8Builder("joined", {"x": Tensor(i8, (3, 100))})
    weights = [rng.integers(-128, 128, (100, size)).astype(np.int8) for size in (40, 700, 320)]
    parts = [
        build.to_int8(build.scaled(build.dot(build.argument("x"), w), np.full(w.shape[1], 0.001))) for w in weights
    ]
    joined = build.builder.concat(*parts, dim=1)
    function = build.finish([build.dot(joined, rng.integers(-128, 128, (1060, 90)).astype(np.int8))])
    x = rng.integers(-128, 128, (3, 100)).astype(np.int8)
    program = compile_graph(function, TSP1, build.constants)
    assert not violations(program)
    np.testing.assert_array_equal(simulate(program, [x]).results[0], run(function, [x, *build.constants.values()])[0])


def test_heads_that_lie_across_vectors_differ_in_their_passes() -> None:
    shape = DecoderShape("wide heads", 640, 10, 5, 128, 320, 2, 700)
    check(shape, tensor_parallel(shape, range(2), 320), 2)


def test_columns_are_whole_vectors() -> None:
    assert columns(8192, range(8), 320)[0] == (0, (0, 960))
    assert [b - a for _, (a, b) in columns(8192, range(8), 320)] == [960, 960, 960, 1280, 960, 960, 960, 1152]
    assert columns(640, range(5), 320) == [(2, (0, 320)), (4, (320, 640))]


def test_stages_and_shared_layers_of_a_decoder() -> None:
    shape = DecoderShape("wide", 1280, 4, 2, 64, 2560, 3, 640)
    weights = LayerWeights(shape)
    apart = schedule_layer(weights, in_stages(shape, range(4), 320), TSP1, 4, 20, 1, in_turn=True)
    shared = schedule_layer(weights, tensor_parallel(shape, range(4), 320), TSP1, 4, 20, 1, to=range(4))
    assert apart.timing.weights > 1.5 * shared.timing.weights
    for timing in (apart.timing, shared.timing):
        assert timing.rest > 0 and timing.hops > TSP1.links.latency_mean
    memory = fill_stages(TSP1, shared, shared, 3, 2, 4)
    assert len(memory) == 8
    held = sum(each.weights for each in memory)
    assert held == pytest.approx(4 * sum(each.weights for each in shared.memory), rel=0.01)


def test_a_plan_has_every_chip_and_is_drawn() -> None:
    plan = plan_racks(SMALL, TSP1, 16, 1, 20)
    assert len(plan.memory) == 16
    assert plan.token.cycles == plan.layer_cycles["words"] + sum(
        plan.layer_cycles["layer" if offset + 7 <= 8 else "layer across nodes"] for offset in (0, 7)
    )
    page = rack_page("small", [plan], TSP1.memory_bytes)
    assert "chip 0: weights" in page and "<script" not in page


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    large = DecoderShape("large", 8192, 64, 8, 128, 28672, 80, 32000)
    with pytest.raises(CapacityError, match=r"68,713,185,280 bytes for weights.*: 1,\d+,\d+,\d+ too few"):
        plan_racks(large, TSP1, 292, 8, 511)
    half = streaming_machine("tsp1", {"memory.bank_words": 2048})
    with pytest.raises(CapacityError, match="too few") as refused:
        plan_racks(large, half, 576, 8, 511)
    assert "chips have as much" in str(refused.value)


def test_a_layer_is_not_shared_beyond_a_node() -> None:
    with pytest.raises(UnsupportedError, match="cannot be stages of 9"):
        plan_racks(SMALL, TSP1, 18, 9, 20)


def test_a_hop_to_the_next_node_is_a_transfer_more() -> None:
    more = hop_cycles(TSP1, columns(640, range(2), 320), 1)
    assert more.transfers == 1
    assert TSP1.link_latency < more.cycles < TSP1.link_latency + 100


def test_regions_are_found_where_there_are_some() -> None:
    # Three that are read together in pairs have no two halves; a cycle of four has.
    square = {0: [(1, True)], 1: [(2, True)], 2: [(3, True)], 3: [(0, True)]}
    found = assign_regions(square, dict.fromkeys(square, 1), 2)
    assert found is not None and all(found[n][0] != found[(n + 1) % 4][0] for n in range(4))
    assert assign_regions({0: [(1, True)], 1: [(2, True)], 2: [(0, True)]}, dict.fromkeys(range(3), 1), 2) is None
