"""The command line of `weft spatial`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands.options import Json
from weft.tools.terminal import Terminal

spatial = typer.Typer(help="Statically scheduled processors: schedules, proved and run.", no_args_is_help=True)

Graph = Annotated[
    str, typer.Argument(help="A graph of 8-bit integers, or .pt2 or .onnx in floats; `-` is standard input.")
]
Constants = Annotated[Path | None, typer.Option(help="An .npz of arguments that are constant; random without one.")]
Machine = Annotated[str, typer.Option("-m", "--machine", help="A machine by name, or a file of one.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Another value for a field: `latency.read=4`.")]
Schedule = Annotated[Path, typer.Argument(help="A schedule that `weft spatial compile` wrote.")]
Seed = Annotated[int, typer.Option(help="Of random values.", min=0)]


@spatial.command("machine")
def machine_command(
    name: Annotated[str, typer.Argument(help="A machine by name, or a file of one.")] = "tsp1",
    set_: Set = None,
    json: Json = False,
) -> None:
    """List what is known of a machine, how far to trust it, and what follows."""
    from weft.tools.spatial import overrides_of, show_machine

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        show_machine(terminal, name, overrides_of(set_ or []))


@spatial.command("compile")
def compile_command(
    file: Annotated[
        str,
        typer.Argument(help="A graph of 8-bit integers, .pt2 or .onnx in floats, or streams; `-` is standard input."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write it; without, `schedule.mlir` or `stream.mlir`."),
    ] = None,
    emit: Annotated[
        str, typer.Option(help="What to write: `schedule`, or `stream`, what is there before anything has its cycle.")
    ] = "schedule",
    optimum: Annotated[
        float | None, typer.Option(help="Seconds of a solver's search for better starts of layers (OR-Tools).", min=0.1)
    ] = None,
    machine: Machine = "tsp1",
    set_: Set = None,
    constants: Constants = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Schedule a graph, verify the schedule and write it, with its cycles and their lower bound."""
    from weft.tools.spatial import compile_file, overrides_of

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        compile_file(terminal, file, machine, overrides_of(set_ or []), constants, seed, emit, output, optimum)


@spatial.command("verify")
def verify_command(schedule: Schedule, json: Json = False) -> None:
    """Check a schedule against the invariants of its machine."""
    from weft.tools.spatial import verify_file

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        verify_file(terminal, schedule)


@spatial.command("simulate")
def simulate_command(
    schedule: Schedule,
    inputs: Annotated[Path | None, typer.Option(help="An .npz of arguments; random without one.")] = None,
    seed: Seed = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write results to this .npz.")] = None,
    json: Json = False,
) -> None:
    """Run a schedule, bit by bit and cycle by cycle; one that does not verify is not run."""
    from weft.tools.spatial import simulate_file

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        simulate_file(terminal, schedule, inputs, seed, output)


@spatial.command("trace")
def trace_command(
    schedule: Schedule,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write it: .json is a trace, .png and .html draw it.")
    ] = Path("trace.json"),
    json: Json = False,
) -> None:
    """Write a schedule as a trace for Perfetto, or draw it: a row for each queue."""
    from weft.tools.spatial import trace_file

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        trace_file(terminal, schedule, output)


@spatial.command("distribute")
def distribute_command(
    file: Graph,
    chips: Annotated[int, typer.Option(help="How many chips.", min=1)] = 8,
    tensor: Annotated[int, typer.Option(help="How many of them share each layer; the others are stages.", min=1)] = 1,
    trace: Annotated[Path | None, typer.Option(help="Write a trace of all chips for Perfetto.")] = None,
    machine: Machine = "tsp1",
    set_: Set = None,
    constants: Constants = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Schedule a graph on many chips, verify all of them, run them and compare with the graph."""
    from weft.tools.spatial import overrides_of
    from weft.tools.spatial_systems import distribute_file

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        distribute_file(terminal, file, machine, overrides_of(set_ or []), constants, seed, chips, tensor, trace)


@spatial.command("racks")
def racks_command(
    model: Annotated[str, typer.Argument(help="A decoder: a folder with config.json, or a name that Weft knows.")],
    chips: Annotated[int, typer.Option(help="How many chips.", min=1)] = 576,
    tensor: Annotated[
        list[int] | None, typer.Option(help="How many chips share a layer; 1: one after another. Default: 1 and 8.")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens in the cache.", min=1)] = 511,
    batch: Annotated[int, typer.Option(help="Tokens of different positions that are computed together.", min=1)] = 1,
    gpu: Annotated[str | None, typer.Option(help="A GPU to compare with, alone and for attention.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Run a small copy with all its bits instead.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Draw memory and time on a page.")] = None,
    machine: Machine = "tsp1",
    set_: Set = None,
    json: Json = False,
) -> None:
    """Plan a decoder over racks of chips: memory of every chip, tokens a second, and what the time is spent on."""
    from weft.tools.spatial import overrides_of
    from weft.tools.spatial_racks import plan_file, run_small

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        known = overrides_of(set_ or [])
        if run:
            run_small(terminal, model, machine, known, min(chips, 16), (tensor or [4])[0], batch)
        plan_file(terminal, model, machine, known, chips, tensor or [1, 8], context, batch, gpu, output)


@spatial.command("explore")
def explore_command(
    file: Annotated[str, typer.Argument(help="A graph of 8-bit integers, or .pt2 or .onnx in floats.")],
    vary: Annotated[list[str], typer.Option(help="A field and its values: `memory.bank_words=2048,4096`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to draw them: a page of its own.")] = Path(
        "explore.html"
    ),
    machine: Machine = "tsp1",
    constants: Constants = None,
    workers: Annotated[int, typer.Option(help="Processes that schedule side by side.", min=1)] = 2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Schedule a graph on variants of a machine, and draw the front of time, area and energy."""
    from weft.tools.spatial import explore_file

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        explore_file(terminal, file, machine, vary, constants, seed, workers, output)


@spatial.command("mesh")
def mesh_command(
    file: Graph,
    machine: Annotated[str, typer.Option("-m", "--machine", help="A mesh by name, or a file of one.")] = "wormhole",
    set_: Set = None,
    constants: Constants = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Schedule a graph of matrices on a mesh of cores, verify it, run it and compare with the graph."""
    from weft.tools.spatial import overrides_of
    from weft.tools.spatial_mesh import mesh_file

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        mesh_file(terminal, file, machine, overrides_of(set_ or []), constants, seed)


@spatial.command("systolic")
def systolic_command(
    m: Annotated[int, typer.Argument(help="Rows of the first matrix.", min=1)],
    k: Annotated[int, typer.Argument(help="Its columns.", min=1)],
    n: Annotated[int, typer.Argument(help="Columns of the second.", min=1)],
    machine: Machine = "systolic128",
    set_: Set = None,
    json: Json = False,
) -> None:
    """Count the cycles of a product on a systolic array, as SCALE-Sim does."""
    from weft.tools.spatial import count_systolic, overrides_of

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        count_systolic(terminal, m, k, n, machine, overrides_of(set_ or []))


@spatial.command("check")
def check_command(
    count: Annotated[int, typer.Option(help="How many random programs.", min=1)] = 20,
    mutants: Annotated[int, typer.Option(help="How many tampered schedules of them.", min=0)] = 200,
    seed: Seed = 0,
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds, with what was done.", min=1)] = float(
        "inf"
    ),
    machine: Machine = "tsp1",
    json: Json = False,
) -> None:
    """Random programs, exact in bits and cycles; tampered schedules, and what the verifier lets through."""
    from weft.tools.spatial_systems import check_programs

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        check_programs(terminal, count, mutants, seed, machine, seconds)


@spatial.command("acceptance")
def acceptance_command(
    row: Annotated[list[int] | None, typer.Option(help="A row of the table; all without it.")] = None,
    machine: Machine = "tsp1",
    set_: Set = None,
    json: Json = False,
) -> None:
    """Every target of the machine beside what is reached now: minutes, most of them for whole models."""
    from weft.tools.spatial import overrides_of
    from weft.tools.spatial_acceptance import show_acceptance

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        show_acceptance(terminal, row or [], machine, overrides_of(set_ or []))
