"""Options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")]
Device = Annotated[str, typer.Option(help="Where tensors lie, as torch names it: cpu or cuda.")]
Shard = Annotated[str | None, typer.Option(help="A part of the whole: 0/4 is every fourth from the first on.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep what a run that ended early has found.")]
Budget = Annotated[float, typer.Option(help="Seconds after which nothing is begun.", min=0)]
