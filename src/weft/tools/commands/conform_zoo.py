"""The command line of `weft conform zoo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands.options import Budget, Device, Jobs, Json, Resume, Shard, Verdicts
from weft.tools.terminal import Terminal


def conform_zoo(
    names: Annotated[list[str] | None, typer.Argument(help="Families by model type; all of them if none.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Element types; float32 and bfloat16 if none.")] = None,
    device: Device = "cpu",
    sample: Annotated[int | None, typer.Option(help="How many families, drawn at random.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the draw, and of the order.", min=0)] = 0,
    shard: Shard = None,
    resume: Resume = False,
    jobs: Jobs = 2,
    budget: Budget = 420.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a step of a family is ended.", min=1)] = 300.0,
    memory: Annotated[float, typer.Option(help="GiB that a child may take.", min=1)] = 12.0,
    speed: Annotated[bool, typer.Option(help="Measure the speed against eager, too.")] = True,
    inductor: Annotated[bool, typer.Option("--inductor", help="And Inductor's.")] = False,
    reports: Verdicts = Path("reports"),
    output: Annotated[Path | None, typer.Option(help="Write the verdicts to this file, for the page.")] = None,
    machine: Annotated[str | None, typer.Option(help="What the file calls the machine.")] = None,
    into: Annotated[
        Path | None, typer.Option(help="Only make this page, from the result files of `--results`.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where the result files lie.")] = Path("benchmarks/results"),
    json: Json = False,
) -> None:
    """Every family of the installed transformers from a small random configuration, against eager and float64."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        if into is not None:
            from weft.tools.pages.zoo_page import write_page

            write_page(terminal, into, results)
        from weft.tools.conform.zoo import ZooRequest
        from weft.tools.conform.zoo import conform_zoo as run

        chosen = tuple(dtype or ["float32", "bfloat16"])
        limits = shard, resume, jobs, budget, timeout, memory, sample, seed
        run(terminal, names or [], ZooRequest(device, chosen, *limits, inductor, speed, reports, output, machine))
