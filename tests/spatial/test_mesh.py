"""Schedules for meshes of cores hold their invariants, take the predicted cycles and give the bits of the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError, WeftError
from weft.ir.types import Tensor, f32, i8
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.machine import MachineError, mesh_machine, streaming_machine
from weft.spatial.mesh.program import MeshProgram
from weft.spatial.mesh.schedule import compile_for_mesh
from weft.spatial.mesh.simulate import simulate_mesh
from weft.spatial.mesh.verify import MeshViolation, mesh_violations, verify_mesh
from weft.spatial.mesh_machine import MeshMachine
from weft.testing.spatial.programs import RandomProgram, random_program, vector_stack

WORMHOLE = mesh_machine("wormhole")


def check(given: RandomProgram, machine: MeshMachine = WORMHOLE) -> MeshProgram:
    program = compile_for_mesh(given.function, machine, given.constants)
    assert not mesh_violations(program)
    simulated = simulate_mesh(program, given.inputs)
    assert simulated.cycles == program.cycles
    for result, expected in zip(simulated.results, run(given.function, given.arrays), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)
    assert program.cycles >= max(program.bounds.values())
    return program


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_a_chain_of_products_is_exact(seed: int) -> None:
    check(random_program(seed))


@pytest.mark.parametrize(
    "overrides",
    [
        {"grid.rows": 1, "grid.columns": 1},
        {"grid.rows": 3, "grid.columns": 5, "network.count": 1},
        {"core.tile": 16, "network.link_bytes": 7, "network.count": 3},
    ],
)
def test_other_meshes_are_exact_too(overrides: dict[str, int]) -> None:
    for given in (random_program(2), vector_stack((70, 64, 64), residual=True)):
        check(given, mesh_machine("wormhole", overrides))


@pytest.mark.parametrize("shape", [(1, 1), (33, 97), (3, 320)])
def test_chains_of_operations_without_a_product_are_exact(shape: tuple[int, int]) -> None:
    build, rng = Int8Builder("chain", {"x": Tensor(i8, shape), "y": Tensor(i8, shape)}), np.random.default_rng(1)
    b = build.builder
    x, y = (b.cast(build.argument(name), dtype=f32) for name in "xy")
    one = build.to_int8(b.mul(b.tanh(b.add(x, y)), y))
    function = build.finish([build.to_int8(build.scaled(one, rng.uniform(0.5, 2, shape[1]).astype(np.float32))), one])
    arrays = [rng.integers(-128, 128, shape, dtype=np.int8) for _ in "xy"]
    check(RandomProgram(function, build.constants, arrays))


def test_more_cores_are_faster() -> None:
    given = vector_stack((1024, 1024, 1024))
    assert check(given).cycles < check(given, mesh_machine("wormhole", {"grid.rows": 2})).cycles


def test_figures_follow_from_the_fields() -> None:
    assert (WORMHOLE.cores, WORMHOLE.int8_macs, WORMHOLE.matrix_cycles) == (64, 64 * 2048, 16)
    assert 2 * WORMHOLE.int8_macs * WORMHOLE.clock_hz == pytest.approx(262e12, rel=0.001)
    assert WORMHOLE.memory_bytes == 95_944_704
    with pytest.raises(MachineError, match="wormhole has no streams"):
        streaming_machine("wormhole")
    with pytest.raises(MachineError, match="tsp1 is no mesh"):
        mesh_machine("tsp1")


@pytest.mark.parametrize(
    ("seed", "overrides", "said"),
    [
        (5, {}, "not of whole matrices"),
        (4, {"core.memory_bytes": 20000}, "bytes of weights and tensors, and has 20,000"),
    ],
)
def test_what_does_not_map_or_fit_is_refused(seed: int, overrides: dict[str, int], said: str) -> None:
    given = random_program(seed)
    with pytest.raises(UnsupportedError, match=said):
        compile_for_mesh(given.function, mesh_machine("wormhole", overrides), given.constants)


def _changed(program: MeshProgram, rng: np.random.Generator) -> MeshProgram:
    """A schedule with one thing moved to another cycle, core or link, or dropped."""
    kind = str(rng.choice([name for name in ("transfers", "multiplies", "computes") if getattr(program, name)]))
    those = list(getattr(program, kind))
    at = int(rng.integers(len(those)))
    match int(rng.integers(4)):
        case 0:
            those[at] = replace(those[at], cycle=those[at].cycle + int(rng.choice([-40, -7, -1, 1, 9, 50])))
        case 1 if kind == "transfers":
            those[at] = replace(those[at], network=1 - those[at].network)
        case 1:
            those[at] = replace(those[at], core=(those[at].core + 1) % program.machine.cores)
        case 2 if kind == "multiplies":
            those[at] = replace(those[at], weights=(those[at].weights + 1) % len(program.weights))
        case _:
            del those[at]
    return replace(program, **{kind: those})


def test_changes_that_do_harm_are_caught() -> None:
    rng, harmful = np.random.default_rng(0), 0
    for given in (random_program(2), random_program(10), vector_stack((200, 96, 96), residual=True)):
        program, expected = check(given), run(given.function, given.arrays)
        for _ in range(40):
            changed = _changed(program, rng)
            try:
                made = simulate_mesh(changed, given.inputs)
                right = made.cycles == changed.cycles
                good = right and all(np.array_equal(a, b) for a, b in zip(made.results, expected, strict=True))
            except WeftError:
                good = False
            if not good:
                harmful += 1
                assert mesh_violations(changed)
                with pytest.raises(MeshViolation, match="invariant"):
                    verify_mesh(changed)
    assert harmful > 50
