"""`weft conform`: outside test suites through Weft; today PyTorch's OpInfo database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from weft.testing.conformance.conformance import ChoiceError, OpinfoReport, run_opinfo
from weft.testing.conformance.opinfo_units import CaseResult, Status
from weft.testing.conformance.transform_cases import TRANSFORMS
from weft.tools.terminal import Terminal, UsageError, check_file, parse_shard


@dataclass(frozen=True)
class Choice:
    """What the command line asks for."""

    backend: str
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    samples: int
    gradients: bool
    strict: bool
    shard: str | None
    jobs: int
    time_limit: float
    log: Path | None
    device: str = "cpu"
    resume: bool = False
    budget: float | None = None
    transform: str = ""


def opinfo(terminal: Terminal, choice: Choice) -> None:
    """Run the database, print what did not pass, and exit with 1 if a result was wrong or failed."""
    if choice.resume and choice.log is None:
        raise UsageError("there is nothing to resume without a log", hint="name the file of the run before with --log")
    if choice.transform and choice.transform not in TRANSFORMS:
        raise UsageError(f"there is no transformation {choice.transform}", hint=f"there are {', '.join(TRANSFORMS)}")
    if choice.log is not None:
        check_file(choice.log, "--log")
    if choice.device != "cpu":
        from weft.testing.devices import device_named

        device_named(choice.device)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = terminal.err.is_terminal and not terminal.json
    with Progress(*columns, console=terminal.err, disable=not shown, transient=True) as progress:
        task = progress.add_task("operators", total=None)

        def advance(result: CaseResult, position: int, total: int) -> None:
            progress.update(task, completed=position, total=total, description=result.op)

        try:
            report = run_opinfo(
                choice.backend,
                choice.dtypes,
                choice.samples,
                choice.gradients,
                choice.ops or None,
                choice.strict,
                parse_shard(choice.shard),
                advance,
                jobs=choice.jobs,
                time_limit=choice.time_limit,
                log=choice.log,
                device=choice.device,
                budget=choice.budget,
                resume=choice.resume,
                transform=choice.transform,
            )
        except ChoiceError as error:
            raise UsageError(error.message, hint=error.hint) from error
    _show(terminal, report)
    terminal.finish({"ok": report.ok, **report.to_json()}, code=0 if report.ok else 1)


def _show(terminal: Terminal, report: OpinfoReport) -> None:
    bad: tuple[Status, ...] = ("wrong", "error", "refused")
    for status in bad:
        for result in report.having(status):
            color = "yellow" if status == "refused" else "red"
            terminal.show(Text.assemble((status, color), f" {result.name}: {result.reason}"))
    if report.not_begun:
        terminal.show(Text(f"no time was left for {len(report.not_begun)} operators: go on with --resume"))
    if report.other_targets:
        terminal.show(Text(f"not native: {', '.join(report.other_targets)}"))
    terminal.show(Text(str(report), style="bold"))
