"""What `weft spatial mesh` does: schedule a graph on a mesh of cores, verify the schedule, run it and compare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from weft.backends.reference.graph import run as run_graph
from weft.backends.target import argument_names
from weft.spatial.machine import mesh_machine
from weft.spatial.mesh.schedule import compile_for_mesh
from weft.spatial.mesh.simulate import simulate_mesh
from weft.spatial.mesh.verify import verify_mesh
from weft.tools.spatial_models import read_with_constants
from weft.tools.terminal import Terminal


def mesh_file(
    terminal: Terminal, file: str, machine_name: str, overrides: Mapping[str, Any], constants: Path | None, seed: int
) -> None:
    """Compile a graph for a mesh, verify its schedule, run it and compare with the graph."""
    machine = mesh_machine(machine_name, overrides)
    function, known = read_with_constants(file, constants, seed)
    rng = np.random.default_rng(seed)
    with terminal.working(f"scheduling {file} on {machine.cores} cores"):
        program = compile_for_mesh(function, machine, known)
        verify_mesh(program)
        shapes = {program.tensors[number].name: program.tensors[number].shape for number in program.inputs}
        given = {name: rng.integers(-128, 128, shape).astype(np.int8) for name, shape in shapes.items()}
        run = simulate_mesh(program, list(given.values()))
        expected = run_graph(
            function, [known[name] if name in known else given[name] for name in argument_names(function)]
        )
    same = all(np.array_equal(one, other) for one, other in zip(run.results, expected, strict=True))
    exact = same and run.cycles == program.cycles
    assumed = len(machine.tagged("assumed"))
    table = Table("", "", show_header=False, title=f"{machine.name}@{machine.digest}")
    table.add_row("cycles", f"{program.cycles:,}; cycle 0 is the start, the last is that of the last result")
    table.add_row("time", f"{program.cycles / machine.clock_hz * 1e6:.3f} µs at {machine.clock_hz / 1e6:g} MHz")
    table.add_row("lower bounds", ", ".join(f"{name} {cycles:,}" for name, cycles in program.bounds.items()))
    table.add_row(
        "busy", ", ".join(f"{name} {cycles:,}" for name, cycles in run.busy.items()) + " cycles, all together"
    )
    table.add_row("rests on", f"{assumed} assumed numbers of {len(machine.facts)}")
    ending = "simulated: the same cycles, and the graph's bits"
    terminal.show(table, ending if exact else f"simulated: {run.cycles} cycles, bits equal: {same}")
    figures = {"cycles": run.cycles, "predicted": program.cycles, "bounds": dict(program.bounds), "busy": run.busy}
    terminal.finish({"ok": exact, "machine": f"{machine.name}@{machine.digest}", **figures}, code=int(not exact))
