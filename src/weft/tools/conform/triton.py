"""`weft conform triton`: the language tests of a Triton checkout, with `triton` resolved to Weft."""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from weft.testing.triton.triton_conformance import TestResult, TritonReport, TritonRun, function_of, run_triton
from weft.testing.triton.triton_tutorials import TutorialResult, run_tutorials
from weft.tools.terminal import Terminal, check_file, counted

ENOUGH = 0.9
"""The share of marked tests that must pass."""


def conform_triton(terminal: Terminal, run: TritonRun) -> None:
    """Run the tests, group what failed by cause, and exit with 1 if too few passed."""
    if run.output is not None:
        check_file(run.output, "--output")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = terminal.err.is_terminal and not terminal.json
    with Progress(*columns, console=terminal.err, disable=not shown, transient=True) as progress:
        task = progress.add_task("collecting", total=None)

        def advance(report: TritonReport, result: TestResult | None) -> None:
            failed = len(report.having("failed"))
            said = f"{function_of(result.test)}, {failed} failed" if result else "collecting"
            progress.update(task, completed=len(report.results), total=report.marked or None, description=said)

        report = run_triton(run, advance)
    _show(terminal, report)
    ok = report.share >= ENOUGH and not report.modules.keys() & _files_with_marks(report)
    terminal.finish({"ok": ok, **report.to_json()}, code=0 if ok else 1)


def conform_tutorials(terminal: Terminal, checkout: Path, names: tuple[str, ...]) -> None:
    """Run the kernels of the tutorials, and exit with 1 if one did not give what torch gives."""

    def advance(result: TutorialResult, position: int, total: int) -> None:
        verdict = ("passed", "green") if result.passed else ("failed", "red")
        terminal.show(Text.assemble(f"{position}/{total} {result.tutorial} ", verdict, f" {result.seconds:.1f} s"))
        if result.error:
            terminal.show(Text(result.error))

    results = run_tutorials(checkout, names, advance)
    passed = [result.tutorial for result in results if result.passed]
    failed = {result.tutorial: result.error for result in results if not result.passed}
    terminal.show(Text(f"{len(passed)} of {counted(len(results), 'tutorial')} passed", style="bold"))
    ok = bool(passed) and not failed
    terminal.finish({"ok": ok, "passed": passed, "failed": failed}, code=0 if ok else 1)


def _files_with_marks(report: TritonReport) -> set[str]:
    return {result.test.partition("::")[0] for result in report.results}


def _show(terminal: Terminal, report: TritonReport) -> None:
    table = Table(title="Failures by cause", title_justify="left")
    for column in ("tests", "cause", "for example"):
        table.add_column(column, overflow="fold")
    first: dict[str, str] = {}
    for result in report.having("failed"):
        first.setdefault(result.cause or "", result.test.rpartition("/")[2])
    for cause, count in report.by_cause().items():
        table.add_row(str(count), Text(cause), Text(first[cause]))
    if table.row_count:
        terminal.show(table)
    for module, cause in report.modules.items():
        terminal.show(Text.assemble(("not imported ", "red"), f"{module}: {cause}"))
    others = sum(report.others.values())
    if others:
        names = ", ".join(sorted({function_of(name) for name in report.others}))
        terminal.show(Text(f"Not marked by upstream for its interpreter, most for a GPU's own code: {names}"))
    passed, failed, skipped = (len(report.having(each)) for each in ("passed", "failed", "skipped"))
    text = f"{passed:,} passed, {failed:,} failed, {skipped:,} skipped by the tests themselves"
    text += f", {report.missing:,} without a verdict" if report.missing > 0 else ""
    text += f"; {report.share:.1%} of what ran passed; {counted(others, 'test')} not marked; {report.seconds:.0f} s"
    terminal.show(Text(text, style="bold"))
    ran = {each: len(report.having(each, marked=False)) for each in ("passed", "failed", "skipped")}
    if any(ran.values()):
        terminal.show(Text("of those not marked: " + ", ".join(f"{count:,} {each}" for each, count in ran.items())))
