"""What `weft spatial` does with many chips: graphs over several of them, and random programs on one and on many."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from weft.backends.reference.graph import run as run_graph
from weft.backends.target import argument_names
from weft.ir.types import tensor_of
from weft.spatial.energy import link_use, system_energy
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.distribute import distribute_graph
from weft.spatial.simulator.run import simulate
from weft.spatial.simulator.system import simulate_system
from weft.spatial.trace import system_trace
from weft.spatial.verifier.verify import system_violations, verify_system, violations
from weft.testing.spatial.mutants import MutantCount, count_mutants, count_system_mutants
from weft.testing.spatial.programs import random_program
from weft.tools.spatial_models import read_with_constants
from weft.tools.terminal import Terminal, check_file

_LAYOUTS = ((2, 1), (2, 2), (4, 2), (8, 8), (16, 4), (3, 1), (16, 8), (16, 1), (4, 4))
"""Chips, and how many of them share a stage, that programs are checked on in turn."""


def _fault(
    what: str, cycles: int, predicted: int, results: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> str:
    same = all(np.array_equal(one, other) for one, other in zip(results, expected, strict=True))
    return "" if same and cycles == predicted else f"{what}: {cycles} cycles, predicted {predicted}, bits equal: {same}"


def distribute_file(
    terminal: Terminal,
    file: str,
    machine_name: str,
    overrides: Mapping[str, Any],
    constants: Path | None,
    seed: int,
    chips: int,
    tensor: int,
    trace: Path | None = None,
) -> None:
    """Compile a graph for many chips, verify their schedules, run them and compare with the graph."""
    if trace is not None:
        check_file(trace, "--trace")
    machine = streaming_machine(machine_name, overrides)
    function, known = read_with_constants(file, constants, seed)
    rng = np.random.default_rng(seed)
    with terminal.working(f"scheduling {file} on {chips} chips"):
        system = distribute_graph(function, machine, known, chips, tensor)
        verify_system(system)
        given: dict[str, np.ndarray] = {}
        for name, value in zip(argument_names(function), function.block.args, strict=True):
            shape = tuple(int(size) for size in tensor_of(value.type).shape)  # type: ignore[arg-type]
            given[name] = known[name] if name in known else rng.integers(-128, 128, shape).astype(np.int8)
        run = simulate_system(system, [given[name] for name in system.inputs])
        expected = run_graph(function, list(given.values()))
    fault = _fault(file, run.cycles, system.cycles, run.results, expected)
    table = Table("chip", "cycles", "planes busy", "instructions", title=f"{system.cycles:,} cycles on {chips} chips")
    for number, program in enumerate(system.programs):
        issues = int(program.instructions["count"].sum())
        table.add_row(str(number), f"{program.cycles:,}", f"{program.bounds.get('MXM', 0):,}", f"{issues:,}")
    terminal.show(table, fault or f"{run.vectors:,} vectors sent; simulated: the same cycles, and the graph's bits")
    joules, links = system_energy(system), link_use(system)
    spent = ", ".join(f"{kind} {value * 1e6:.2f}" for kind, value in joules.items())
    busiest = max(links.values(), default=0.0)
    terminal.show(f"{sum(joules.values()) * 1e6:.2f} µJ ({spent}); the busiest of {len(links)} wires: {busiest:.1%}")
    if trace is not None:
        trace.write_text(json.dumps(system_trace(system)), encoding="utf-8")
        terminal.show(f"a trace of all chips in {trace}")
    figures: dict[str, Any] = {"cycles": run.cycles, "predicted": system.cycles, "chips": chips}
    figures["vectors"] = run.vectors
    figures |= {"joules": joules, "busiest_wire": busiest}
    terminal.finish({"ok": not fault, **figures, "bounds": dict(system.bounds)}, code=int(bool(fault)))


def check_programs(
    terminal: Terminal, count: int, mutants: int, seed: int, machine_name: str, seconds: float = inf
) -> None:
    """Random programs, exact in bits and cycles, and what the verifier lets through of tampered ones."""
    machine = streaming_machine(machine_name)
    tally = MutantCount()
    wrong: list[str] = []
    alarms = linked = done = 0
    end = time.monotonic() + seconds
    with terminal.working("checking"):
        for number in range(seed, seed + count):
            if done and time.monotonic() > end:
                break
            done += 1
            given = random_program(number)
            expected = run_graph(given.function, given.arrays)
            program = compile_graph(given.function, machine, given.constants)
            alarms += bool(violations(program))
            run = simulate(program, given.inputs)
            if fault := _fault(f"program {number}", run.cycles, program.cycles, run.results, expected):
                wrong.append(fault)
            share = mutants * (number + 1 - seed) // count - mutants * (number - seed) // count
            chips, tensor = _LAYOUTS[number % len(_LAYOUTS)]
            system = distribute_graph(given.function, machine, given.constants, chips, tensor)
            alarms += bool(system_violations(system))
            both = simulate_system(system, given.inputs)
            linked += bool(both.vectors)
            if fault := _fault(f"program {number} on {chips}", both.cycles, system.cycles, both.results, expected):
                wrong.append(fault)
            apart = share // 3 if both.vectors else 0
            count_mutants(program, given.inputs, expected, share - apart, number, tally)
            count_system_mutants(system, given.inputs, expected, apart, number, tally)
    for line in wrong:
        terminal.show(line)
    table = Table(
        "change",
        "caught",
        "missed",
        "harmless",
        title=f"{done} programs, each on one chip and on up to 16, {alarms} false alarms",
    )
    for kind in sorted({*tally.caught, *tally.missed, *tally.benign}):
        table.add_row(kind, *(str(each[kind]) for each in (tally.caught, tally.missed, tally.benign)))
    table.add_row("all", str(tally.caught.total()), str(tally.missed.total()), str(tally.benign.total()))
    terminal.show(table)
    ok = not wrong and not alarms and not tally.missed.total()
    figures = {
        "programs": 2 * done,
        "linked": linked,
        "wrong": wrong,
        "false_alarms": alarms,
        "harmful": tally.harmful,
    }
    caught = {"caught": tally.caught.total(), "missed": dict(tally.missed), "by_invariant": dict(tally.invariants)}
    terminal.finish({"ok": ok, **figures, **caught}, code=int(not ok))
