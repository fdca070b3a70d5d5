"""What `weft spatial` does: compile graphs for spatial machines, verify, run and picture schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from weft.backends.target import argument_names
from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp
from weft.spatial.machine import StreamingMachine, SystolicMachine, load_machine, streaming_machine
from weft.spatial.program import Program
from weft.spatial.schedule_dialect import load_program, save_program
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.simulator.run import simulate
from weft.spatial.systolic import schedule_product
from weft.spatial.trace import trace_of
from weft.spatial.verifier.verify import verify, violations
from weft.tile.text import functions_of, parse_program
from weft.tools.opt import read_source
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
        follows = Table("what follows", "value")
        for what, value in derived.items():
            follows.add_row(what, f"{value:,}")
        terminal.show(follows)
    terminal.finish({"ok": True, "machine": machine.name, "digest": machine.digest, "facts": facts, "derived": derived})


def compile_file(
    terminal: Terminal,
    file: str,
    machine_name: str,
    overrides: Mapping[str, Any],
    constants: Path | None,
    seed: int,
    output: Path,
) -> None:
    """Compile a graph, verify its schedule and write it."""
    check_file(output, "--output")
    machine = streaming_machine(machine_name, overrides)
    function = _function(file)
    known = _constants(function, constants, seed)
    with terminal.working(f"scheduling {file}"):
        program = compile_graph(function, machine, known)
        verify(program)
        band = [compile_graph(_function(file), machine.scaled(factor), known).cycles for factor in (0.5, 2)]
        save_program(program, output)
    _report(terminal, program, band, f"written to {output}")


def _function(file: str) -> FuncOp:
    text, name = read_source(file)
    found = functions_of(parse_program(text, name))
    if len(found) != 1:
        raise UsageError(f"{file} has {len(found)} functions", hint="give a file with one")
    return found[0]


def _constants(function: FuncOp, path: Path | None, seed: int) -> dict[str, np.ndarray]:
    """Constants of a file; without one, all arguments but the first are random."""
    names = argument_names(function)
    if path is not None:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", hint="--constants takes an .npz with arrays by argument")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names if name in arrays}
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, value in list(zip(names, function.block.args, strict=True))[1:]:
        tensor = tensor_of(value.type)
        shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
        small = tensor.dtype.is_integer
        made[name] = (rng.integers(-128, 128, shape) if small else rng.uniform(0.001, 0.01, shape)).astype(
            tensor.dtype.numpy
        )
    return made


def _report(terminal: Terminal, program: Program, band: list[int], ending: str) -> None:
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
    terminal.show(table, ending)
    terminal.finish(
        {
            "ok": True,
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
    with np.load(_existing(path), allow_pickle=False) as arrays:
        if missing := [port.name for port in program.inputs if port.name not in arrays]:
            raise UsageError(f"{path} has no array {missing[0]}")
        return [arrays[port.name] for port in program.inputs]


def trace_file(terminal: Terminal, path: Path, output: Path) -> None:
    """Write a schedule as a trace for Perfetto."""
    check_file(output, "--output")
    trace = trace_of(load_program(_existing(path)))
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
