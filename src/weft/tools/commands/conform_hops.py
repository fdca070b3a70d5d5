"""The command line of `weft conform hops`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands.options import Budget, Device, Dtypes, Jobs, Json, Resume, Verdicts
from weft.tools.terminal import Terminal


def conform_hops(
    names: Annotated[list[str] | None, typer.Argument(help="Entries by name; all of them if there are none.")] = None,
    dtype: Dtypes = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile for sizes that are not known.")] = False,
    device: Device = "cpu",
    resume: Resume = False,
    jobs: Jobs = 2,
    budget: Budget = 420.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which an entry is ended.", min=1)] = 120.0,
    reports: Verdicts = Path("reports"),
    json: Json = False,
) -> None:
    """PyTorch's database of higher-order operators: `cond`, `scan`, `map`, `flex_attention` and others."""
    from weft.tools.conform.hops import HopRequest
    from weft.tools.conform.hops import conform_hops as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        chosen = tuple(names or ()), tuple(dtype or ["float32"]), dynamic
        run(terminal, HopRequest(*chosen, device, resume, jobs, budget, timeout, reports))
