"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.tools.commands.run_command_line import JSON, CommandOption


def stated(option: CommandOption) -> Any:
    """An option of `weft run`, which is stated where typer is not imported."""
    return typer.Option(option.name, help=option.help, min=option.least)


Json = Annotated[bool, stated(JSON)]
Device = Annotated[str, typer.Option(help="Where tensors lie, as torch names it: cpu or cuda.")]
Shard = Annotated[str | None, typer.Option(help="A part of the whole: 0/4 is every fourth from the first on.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep what a run that ended early has found.")]
Budget = Annotated[float, typer.Option(help="Seconds after which nothing is begun.", min=0)]
Dtypes = Annotated[list[str] | None, typer.Option(help="Element types, as torch names them.")]
Jobs = Annotated[int, typer.Option(help="Child processes.", min=1)]
Verdicts = Annotated[Path, typer.Option(help="Where the journal of verdicts lies.")]
