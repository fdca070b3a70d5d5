"""What `weft spatial` does: compile graphs for spatial machines, verify, run and picture schedules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from weft.spatial.explore import explore, page_of, pareto_front
from weft.spatial.gantt import gantt_page, gantt_png
from weft.spatial.machine import StreamingMachine, SystolicMachine, load_machine, streaming_machine
from weft.spatial.mesh_machine import MeshMachine
from weft.spatial.program import Program
from weft.spatial.read_files import read_arrays, read_text
from weft.spatial.schedule_dialect import load_program, save_program
from weft.spatial.scheduler.compile import map_streams, optimize_streams, schedule_streams
from weft.spatial.scheduler.optimum import Optimum
from weft.spatial.simulator.run import simulate
from weft.spatial.stream_program import StreamProgram, load_streams, save_streams
from weft.spatial.systolic import schedule_product
from weft.spatial.trace import trace_of
from weft.spatial.verifier.verify import verify, violations
from weft.tile.text import print_program
from weft.tools.spatial_models import read_with_constants
from weft.tools.terminal import Terminal, UsageError, check_file

_NOTE = "cycle 0 is the first issue after the start, and the last is when all lanes are done"


def overrides_of(words: list[str]) -> dict[str, Any]:
    """`latency.read=4` as a field and a number."""
    found: dict[str, Any] = {}
    for word in words:
        path, sign, value = word.partition("=")
        try:
            found[path] = json.loads(value)
        except json.JSONDecodeError:
            sign = ""
        if not sign:
            raise UsageError(f"{word} is not an override", hint="--set latency.read=4")
    return found


def show_machine(terminal: Terminal, name: str, overrides: Mapping[str, Any]) -> None:
    """The facts of a machine, with their sources."""
    machine = load_machine(name, overrides)
    table = Table("field", "value", "tag", "source", title=f"{machine.name}@{machine.digest}")
    for path, fact in machine.facts.items():
        table.add_row(path, str(fact.value), fact.tag, fact.source)
    terminal.show(table)
    facts = {path: {"value": f.value, "tag": f.tag, "source": f.source} for path, f in machine.facts.items()}
    derived: dict[str, Any] = {}
    if isinstance(machine, StreamingMachine):
        derived = {
            "lanes": machine.width,
            "memory bytes": machine.memory_bytes,
            "memory bytes a cycle": machine.memory_rate,
            "stream bytes a cycle": machine.stream_rate,
            "int8 MACs a cycle": machine.int8_macs,
            "fp16 MACs a cycle": machine.fp16_macs,
            "cycles to load all weights": machine.weight_floor,
        }
    if isinstance(machine, MeshMachine):
        derived = {
            "cores": machine.cores,
            "memory bytes": machine.memory_bytes,
            "int8 MACs a cycle": machine.int8_macs,
            "cycles of a tile on a matrix unit": machine.matrix_cycles,
            "cycles of a tile on a link": machine.link_cycles(1),
        }
    if derived:
        follows = Table("what follows", "value")
        for what, value in derived.items():
            follows.add_row(what, f"{value:,}")
        terminal.show(follows)
    terminal.finish({"ok": True, "machine": machine.name, "digest": machine.digest, "facts": facts, "derived": derived})


LEVELS = ("schedule", "stream")
"""What `compile` writes: the first has cycles, the second comes before."""


def compile_file(
    terminal: Terminal,
    file: str,
    machine_name: str,
    overrides: Mapping[str, Any],
    constants: Path | None,
    seed: int,
    emit: str,
    output: Path | None,
    seconds: float | None = None,
) -> None:
    """Compile a graph, or a program of streams, verify its schedule and write it."""
    if emit not in LEVELS:
        raise UsageError(f"no level is called {emit}", hint=f"--emit takes {' or '.join(LEVELS)}")
    machine = streaming_machine(machine_name, overrides)
    output = output or Path(f"{emit}.mlir")
    check_file(output, "--output")
    streams = _streams(file, machine, constants, seed)
    if emit == "stream":
        given = streams(machine)
        save_streams(given, output)
        counts = Counter(op.name.removeprefix("stream.") for op in given.op.walk())
        table = Table("op", "count", title=f"{file} as streams")
        for name, count in sorted(counts.items()):
            table.add_row(name, f"{count:,}")
        terminal.show(table, f"written to {output}")
        terminal.finish({"ok": True, "ops": dict(counts)})
        return
    with terminal.working(f"scheduling {file}"):
        best: Optimum | None = None
        if seconds is None:
            program = schedule_streams(streams(machine), machine)
        else:
            program, best = optimize_streams(streams(machine), machine, seconds)
        verify(program)
        scaled = [machine.scaled(factor) for factor in (0.5, 2)]
        band = [schedule_streams(streams(each), each).cycles for each in scaled]
        save_program(program, output)
    _report(terminal, program, band, f"written to {output}", best)


def _streams(
    file: str, machine: StreamingMachine, constants: Path | None, seed: int
) -> Callable[[StreamingMachine], StreamProgram]:
    """The streams of a file for a machine: those it has, or what its graph is mapped to."""
    path = Path(file)
    if path.suffix == ".mlir" and path.is_file() and '"stream.program"' in read_text(path):
        given = load_streams(path)
        return lambda _: given
    function, known = read_with_constants(file, constants, seed)
    return lambda each: map_streams(function, each, known)


def _report(terminal: Terminal, program: Program, band: list[int], ending: str, best: Optimum | None) -> None:
    machine = program.machine
    binding = max(program.bounds, key=lambda name: program.bounds[name], default="")
    bound = program.bounds.get(binding, 0)
    assumed = len([path for path in machine.tagged("assumed") if path.startswith("latency.")])
    table = Table("", "", show_header=False, title=f"{machine.name}@{machine.digest}")
    table.add_row("cycles", f"{program.cycles:,} [{band[0]:,} … {band[1]:,}] with assumed latencies halved and doubled")
    table.add_row("time", f"{program.cycles / machine.clock_hz * 1e6:.3f} µs at {machine.clock_hz / 1e6:g} MHz")
    table.add_row(
        "lower bound", f"{bound:,} ({binding}); " + ", ".join(f"{k} {v:,}" for k, v in program.bounds.items())
    )
    table.add_row(
        "instructions", f"{int(program.instructions['count'].sum()):,} in {len(program.instructions):,} groups"
    )
    table.add_row("rests on", f"{assumed} assumed latencies; {_NOTE}")
    if best is not None:
        said = "no starts of these layers are better" if best.proved else f"no starts end before {best.bound:,}"
        table.add_row(
            "solver", f"{best.given:,} cycles as scheduled, {best.found:,} with the best starts found; {said}"
        )
    terminal.show(table, ending)
    terminal.finish(
        {
            "ok": True,
            "optimum": None if best is None else {"given": best.given, "bound": best.bound, "proved": best.proved},
            "machine": f"{machine.name}@{machine.digest}",
            "cycles": program.cycles,
            "band": band,
            "bounds": dict(program.bounds),
            "groups": len(program.instructions),
        }
    )


def verify_file(terminal: Terminal, path: Path) -> None:
    """Check a schedule; say everything that is wrong with it."""
    program = load_program(_existing(path))
    with terminal.working("verifying"):
        found = violations(program)
    for each in found:
        terminal.show(str(each))
    if not found:
        terminal.show(f"{path}: all invariants hold")
    figures = [{"invariant": each.invariant, "message": each.message} for each in found]
    terminal.finish({"ok": not found, "violations": figures}, code=int(bool(found)))


def simulate_file(terminal: Terminal, path: Path, inputs: Path | None, seed: int, output: Path | None) -> None:
    """Verify a schedule and run it."""
    program = load_program(_existing(path))
    with terminal.working("simulating"):
        verify(program)
        run = simulate(program, _inputs(program, inputs, seed))
    table = Table("unit", "issues", "busy", title=f"{run.cycles:,} cycles, predicted {program.cycles:,}")
    counts = {
        "MEM read": program.machine.slices,
        "MEM write": program.machine.slices,
        "MXM": program.machine.matrix.planes,
        "VXM": program.machine.alus,
    }
    for name, issues in run.busy.items():
        table.add_row(name, f"{issues:,}", f"{issues / (counts[name] * run.cycles):.1%}")
    terminal.show(table)
    if output is not None:
        results = {port.name: array for port, array in zip(program.outputs, run.results, strict=True)}
        np.savez(output, **results)  # type: ignore[arg-type]
    same = run.cycles == program.cycles
    terminal.finish(
        {"ok": same, "cycles": run.cycles, "predicted": program.cycles, "issues": dict(run.issued)}, code=int(not same)
    )


def _inputs(program: Program, path: Path | None, seed: int) -> list[np.ndarray]:
    if path is None:
        rng = np.random.default_rng(seed)
        return [rng.integers(-128, 128, port.shape).astype(port.dtype) for port in program.inputs]
    arrays = read_arrays(_existing(path))
    if missing := [port.name for port in program.inputs if port.name not in arrays]:
        raise UsageError(f"{path} has no array {missing[0]}")
    return [arrays[port.name] for port in program.inputs]


def explore_file(
    terminal: Terminal,
    file: str,
    machine_name: str,
    vary: list[str],
    constants: Path | None,
    seed: int,
    workers: int,
    output: Path,
) -> None:
    """Schedule a graph on every combination of values, and draw what each takes."""
    check_file(output, "--output")
    values = {path: _values(word, given) for word in vary for path, _, given in [word.partition("=")]}
    if not values:
        raise UsageError("nothing varies", hint="--vary memory.bank_words=2048,4096")
    function, known = read_with_constants(file, constants, seed)
    with terminal.working(f"scheduling {prod(len(each) for each in values.values())} variants"):
        found = explore(print_program(function), known, machine_name, values, workers)
    front = pareto_front(found)
    table = Table(
        *values, "cycles", "µs", "M transistors", "µJ", "busy", title=f"{len(front)} of {len(found)}: the front"
    )
    for number in front:
        each = found[number]
        figures = (f"{each.cycles:,}", f"{each.microseconds:.3f}", f"{each.area:,.0f}", f"{each.joules * 1e6:.1f}")
        table.add_row(*(str(value) for value in each.overrides.values()), *figures, each.binding)
    problems = {each.problem for each in found if each.problem}
    output.write_text(page_of(f"{Path(file).name} on {machine_name}", found), encoding="utf-8")
    terminal.show(table, *(f"not possible: {problem}" for problem in sorted(problems)), f"drawn in {output}")
    figures_of = [{**asdict(each), "front": number in front} for number, each in enumerate(found)]
    terminal.finish({"ok": bool(front), "variants": figures_of}, code=int(not front))


def _values(word: str, given: str) -> list[Any]:
    try:
        values: list[Any] = json.loads(f"[{given}]")
    except json.JSONDecodeError:
        values = []
    if not values:
        raise UsageError(f"{word} gives no values", hint="--vary memory.bank_words=2048,4096")
    return values


def trace_file(terminal: Terminal, path: Path, output: Path) -> None:
    """Write a schedule as a trace for Perfetto, or draw it: what the name of the output ends in says which."""
    check_file(output, "--output")
    program = load_program(_existing(path))
    if output.suffix in (".png", ".html"):
        if output.suffix == ".png":
            output.write_bytes(gantt_png(program))
        else:
            output.write_text(gantt_page(program, path.name), encoding="utf-8")
        terminal.show(f"{program.cycles:,} cycles drawn in {output}")
        terminal.finish({"ok": True, "cycles": program.cycles})
    trace = trace_of(program)
    output.write_text(json.dumps(trace), encoding="utf-8")
    terminal.show(f"{len(trace['traceEvents']):,} events written to {output}; ui.perfetto.dev shows them")
    terminal.finish({"ok": True, "events": len(trace["traceEvents"])})


def count_systolic(terminal: Terminal, m: int, k: int, n: int, machine_name: str, overrides: Mapping[str, Any]) -> None:
    """The cycles of a product on a systolic array."""
    machine = load_machine(machine_name, overrides)
    if not isinstance(machine, SystolicMachine):
        raise UsageError(f"{machine_name} is no systolic array", hint="systolic128 is one")
    schedule = schedule_product(machine, m, k, n)
    cycles = schedule.last_cycle
    array = machine.array
    terminal.show(
        f"{cycles:,} cycles for [{m}, {k}] by [{k}, {n}] on {array.rows} × {array.columns}, as SCALE-Sim counts"
    )
    terminal.finish({"ok": True, "cycles": cycles, "folds": len(schedule.folds)})


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="`weft spatial compile` writes schedules")
    return path
