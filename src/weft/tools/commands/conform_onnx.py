"""The command line of `weft conform onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands.options import Budget, Device, Jobs, Json, Resume, Shard, Verdicts
from weft.tools.terminal import Terminal


def conform_onnx(
    suites: Annotated[
        list[str] | None, typer.Argument(help="node, simple, pytorch-converted, pytorch-operator; all if none.")
    ] = None,
    pattern: Annotated[str, typer.Option("-k", help="Cases whose names match this regular expression.")] = "",
    device: Device = "cpu",
    shard: Shard = None,
    resume: Resume = False,
    jobs: Jobs = 2,
    budget: Budget = 3600.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a case is ended.", min=1)] = 120.0,
    reports: Verdicts = Path("reports"),
    json: Json = False,
) -> None:
    """ONNX's own backend tests through `weft.onnx.Backend`; refusals count as failures."""
    from weft.tools.conform.onnx import OnnxRequest
    from weft.tools.conform.onnx import conform_onnx as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        limits = shard, resume, jobs, budget, timeout, reports
        run(terminal, OnnxRequest(tuple(suites or ()), pattern, device, *limits))
