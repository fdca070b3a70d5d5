"""`weft conform kernels`: the tests of a library of Triton kernels, with Weft as Triton, and with Triton beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from weft.testing.triton.kernel_libraries import LibraryReport, LibraryResult, LibraryRun, Side, library_at, run_library
from weft.testing.triton.library_plugin import real_triton
from weft.testing.triton.triton_conformance import function_of
from weft.tools.terminal import Terminal, UsageError, check_folder, parse_shard

JOURNAL = "conform-kernels.jsonl"
ENOUGH = 0.97
"""The share of the tests that pass under Triton (without it: that ran) that must be right."""
_SHOWN = 12
"""Causes of skips that are shown, at most."""


@dataclass(frozen=True)
class KernelRequest:
    """What the command line asks for."""

    library: str
    tests: str
    files: tuple[str, ...]
    expression: str
    sample: int | None
    seed: int
    shard: str | None
    jobs: int
    timeout: float
    budget: float | None
    device: str
    sides: tuple[str, ...]
    resume: bool
    reports: Path

    def to_run(self) -> LibraryRun:
        """The run that is asked for; what cannot be run is said at once."""
        if self.device not in ("cpu", "cuda"):
            raise UsageError(f"there is no device {self.device}", hint="give --device cpu or cuda")
        check_folder(self.reports, "--reports")
        return LibraryRun(
            library_at(self.library),
            self.reports / JOURNAL,
            self.tests,
            self.files,
            self.expression,
            self.sample,
            self.seed,
            parse_shard(self.shard),
            self.jobs,
            self.timeout,
            self.budget,
            self.device,
            self._sides(),
            self.resume,
        )

    def _sides(self) -> tuple[Side, ...]:
        known: dict[str, Side] = {"weft": "weft", "triton": "triton"}
        unknown = [side for side in self.sides if side not in known]
        if unknown:
            raise UsageError(f"there is no side {unknown[0]}", hint="give --side weft, triton, or both")
        able = real_triton() and self.device != "cpu"
        if "triton" in self.sides and not able:
            raise UsageError(
                "Triton cannot run these tests here",
                hint="it is not installed: pip install triton" if not real_triton() else "give --device cuda",
            )
        return tuple(known[side] for side in self.sides) or (("weft", "triton") if able else ("weft",))


def conform_kernels(terminal: Terminal, request: KernelRequest) -> None:
    """Run the tests, group what was not right by cause, and exit with 1 if too few were."""
    run = request.to_run()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = terminal.err.is_terminal and not terminal.json
    with Progress(*columns, console=terminal.err, disable=not shown, transient=True) as progress:
        task = progress.add_task("collecting", total=None)

        def advance(report: LibraryReport, result: LibraryResult | None) -> None:
            said = function_of(result.test) if result else "collecting"
            total = report.chosen * len(run.sides)
            progress.update(task, completed=len(report.results), total=total, description=said)

        report = run_library(run, advance)
    _show(terminal, report, run)
    ok = bool(report.judged) and report.share >= ENOUGH
    terminal.finish({"ok": ok, "journal": str(run.journal), **report.to_json()}, code=0 if ok else 1)


def _show(terminal: Terminal, report: LibraryReport, run: LibraryRun) -> None:
    table = Table(title="Not right, by cause", title_justify="left")
    for column in ("tests", "cause", "under Triton", "for example"):
        table.add_column(column, overflow="fold")
    theirs = {result.test: result.verdict for result in report.results if result.side == "triton"}
    for cause, results in report.by_cause("weft", "wrong", "error").items():
        right = sum(theirs.get(result.test) == "right" for result in results)
        beside = f"{right} right" if theirs else "not run"
        table.add_row(str(len(results)), Text(cause), beside, Text(results[0].test.rpartition("/")[2]))
    if table.row_count:
        terminal.show(table)
    for cause, results in list(report.by_cause("weft", "skipped").items())[:_SHOWN]:
        terminal.show(Text(f"skipped by the tests themselves: {len(results)}, {cause}"))
    for module, cause in report.modules.items():
        terminal.show(Text.assemble(("not imported ", "red"), f"{module}: {cause}"))
    for side in report.sides:
        counts = ", ".join(f"{count:,} {verdict}" for verdict, count in report.counts(side).items())
        terminal.show(Text(f"{side}: {counts}", style="bold"))
    both = report.seconds_of_both
    if both["tests"]:
        seconds = f"Weft {both['weft']:.0f} s, Triton {both['triton']:.0f} s"
        terminal.show(Text(f"{both['tests']} tests that are right with both took {seconds}, tuning included"))
    what = "of those that pass under Triton" if "triton" in report.sides else "of those that ran"
    seconds = f"{report.seconds:.0f} s; verdicts in {run.journal}"
    terminal.show(Text(f"{report.share:.1%} right {what} ({len(report.judged):,}); {seconds}", style="bold"))
