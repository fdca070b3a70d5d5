"""Schedules hold all invariants, take the cycles that were predicted, and compute the bits of the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.spatial.exact_programs import TSP1, check
from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.isa import Opcode
from weft.spatial.machine import streaming_machine
from weft.spatial.schedule_dialect import load_program, save_program
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.installs import install_all_planes
from weft.spatial.scheduler.memory_map import CapacityError
from weft.spatial.simulator.issues import run_queues
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations
from weft.testing.spatial.programs import RandomProgram, random_program, vector_stack
from weft.testing.spatial.resnet import resnet
from weft.tile.text import functions_of, parse_program


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_is_exact(seed: int) -> None:
    check(random_program(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 200))
def test_many_random_programs_are_exact(seed: int) -> None:
    check(random_program(seed))


@pytest.mark.slow
def test_a_resnet_of_small_images_is_exact() -> None:
    check(resnet(50, side=16))


@pytest.mark.parametrize("factor", [0.5, 2])
def test_other_latencies_give_other_schedules_that_are_exact_too(factor: float) -> None:
    for seed in (4, 7):
        assert check(random_program(seed), TSP1.scaled(factor)) != check(random_program(seed))


@pytest.mark.parametrize(
    "overrides", [{"matrix.accumulator_rows": 3}, {"memory.slices_per_hop": 1}, {"latency.install_weights": 3}]
)
def test_other_machines_are_exact_too(overrides: dict[str, int]) -> None:
    for seed in (0, 5):
        check(random_program(seed), streaming_machine("tsp1", overrides))


def test_a_hypothetical_machine_is_exact_too() -> None:
    check(random_program(6), streaming_machine("lpx-hypothetical"))


def test_pools_whose_windows_crowd_a_slice_run_slower() -> None:
    check(random_program(10053))


def product(m: int, k: int, n: int) -> str:
    x, w, y = f"tensor<{m}x{k}xi8>", f"tensor<{k}x{n}xi8>", f"tensor<{m}x{n}xi32>"
    return f"""
"graph.func"() ({{
^bb0(%x: {x}, %w: {w}):
  %0 = "graph.dot"(%x, %w) {{dtype = i32}} : ({x}, {w}) -> {y}
  "graph.return"(%0) : ({y}) -> ()
}}) {{sym_name = "product", arg_names = ["x", "w"]}} : () -> ()
"""


def test_a_schedule_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (40, 330), dtype=np.int8), rng.integers(-128, 128, (330, 70), dtype=np.int8)
    program = compile_graph(functions_of(parse_program(product(40, 330, 70)))[0], TSP1, {"w": w})
    save_program(program, tmp_path / "schedule.mlir")
    again = load_program(tmp_path / "schedule.mlir")
    assert not violations(again)
    simulated = simulate(again, [x])
    assert simulated.cycles == program.cycles
    np.testing.assert_array_equal(simulated.results[0], x.astype(np.int32) @ w.astype(np.int32))


def test_the_same_graph_gives_the_same_schedule() -> None:
    programs = [compile_graph(random_program(3).function, TSP1, random_program(3).constants) for _ in range(2)]
    assert programs[0].instructions.tobytes() == programs[1].instructions.tobytes()


def test_weights_of_all_planes_are_installed_within_40_cycles() -> None:
    tiles = np.random.default_rng(0).integers(-128, 128, (4, 320, 320), dtype=np.int8)
    program = install_all_planes(TSP1, tiles)
    assert not violations(program)
    issues = run_queues(program)
    installed = issues["cycle"][issues.of(Opcode.INSTALL_WEIGHTS)].max() + TSP1.latency.install_weights
    assert 20 <= installed - issues["cycle"].min() < 40


def test_the_weights_of_the_next_pass_load_while_this_one_runs() -> None:
    m, k, n = 400, 1280, 320
    w = np.ones((k, n), np.int8)
    program = compile_graph(functions_of(parse_program(product(m, k, n)))[0], TSP1, {"w": w})
    assert program.bounds["MXM"] == m * 4 // 4
    assert program.cycles < program.bounds["MXM"] + 100 + 150  # i32 leaves at half the rate; fill and drain


def test_a_model_that_does_not_fit_says_demand_and_capacity() -> None:
    small = streaming_machine("tsp1", {"memory.bank_words": 16})
    with pytest.raises(CapacityError, match="needs 100 words of a bank in 16 slices, and 16 are left; the tensors"):
        compile_graph(functions_of(parse_program(product(400, 64, 64)))[0], small, {"w": np.ones((64, 64), np.int8)})


def test_what_is_not_mapped_is_refused_with_its_line() -> None:
    text = (
        product(4, 8, 8)
        .replace("%0) :", "%1) :")
        .replace('  "graph.return"', '  %1 = "graph.neg"(%0) : (tensor<4x8xi32>) -> tensor<4x8xi32>\n  "graph.return"')
    )
    with pytest.raises(UnsupportedError, match=r"graph.neg of a product.*\n  at program.mlir:5"):
        compile_graph(functions_of(parse_program(text, "program.mlir"))[0], TSP1, {"w": np.ones((8, 8), np.int8)})


def test_more_planes_than_have_streams_are_refused() -> None:
    overrides = {"matrix.planes": 8, "matrix.load_streams": 8, "memory.slices_per_half": 64}
    with pytest.raises(CapacityError, match="a half has 4 planes, and streams for the rows and sums of 2"):
        check(random_program(0), streaming_machine("tsp1", overrides))


@pytest.mark.parametrize("planes", [2, 4])
def test_sums_of_32_bits_have_four_bytes_whatever_planes_there_are(planes: int) -> None:
    overrides = {"matrix.planes": planes, "matrix.load_streams": 8}
    build = Int8Builder("sums", {"x": Tensor(i8, (9, 70))})
    rng = np.random.default_rng(planes)
    given = rng.integers(-128, 128, (9, 70)).astype(np.int8)
    build.finish([build.dot(build.argument("x"), rng.integers(-128, 128, (70, 350)).astype(np.int8))])
    check(RandomProgram(build.function, build.constants, [given]), streaming_machine("tsp1", overrides))


@pytest.mark.parametrize("given", [random_program(0), vector_stack((40, 40))])
def test_fewer_streams_than_schedules_take_are_refused(given: RandomProgram) -> None:
    machine = streaming_machine("tsp1", {"streams.per_direction": 8, "matrix.load_streams": 2})
    with pytest.raises(CapacityError, match="a direction has 8 streams, and 32 are needed"):
        compile_graph(given.function, machine, given.constants)
