"""`weft conform onnx`: ONNX's backend tests; whatever does not pass counts as a failure, refusals too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from weft.testing.conformance.check_runner import Check, CheckSettings, Verdict, run_checks
from weft.testing.conformance.journal import Journal, commit, part
from weft.tools.terminal import Terminal, UsageError, check_folder, parse_shard

JOURNAL = "conform-onnx.jsonl"
ENOUGH = 0.95
"""The share of all cases that must pass; none may be wrong."""


@dataclass(frozen=True)
class OnnxRequest:
    """What the command line asks for."""

    suites: tuple[str, ...]
    pattern: str
    device: str
    shard: str | None
    resume: bool
    jobs: int
    budget: float
    timeout: float
    reports: Path


def conform_onnx(terminal: Terminal, request: OnnxRequest) -> None:
    """Run the suites, list what did not pass by reason, and exit with 1 if too few passed or one was wrong."""
    from weft.testing.conformance.onnx_cases import SUITES, cases

    if unknown := [suite for suite in request.suites if suite not in SUITES]:
        raise UsageError(f"no suite is called {unknown[0]}", hint=f"there are {', '.join(SUITES)}")
    check_folder(request.reports, "--reports")
    chosen = [
        Check(suite, name, "")
        for suite in request.suites or SUITES
        for name in cases(suite)
        if re.search(request.pattern, name)
    ]
    if not chosen:
        raise UsageError(f"no case has {request.pattern!r} in its name")
    mine: list[Check] = part(chosen, parse_shard(request.shard))
    journal = Journal(request.reports / JOURNAL, f"{commit()} {request.device}")
    if not request.resume:
        journal.forget({check.key for check in mine})
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = terminal.err.is_terminal and not terminal.json
    with Progress(*columns, console=terminal.err, disable=not shown, transient=True) as progress:
        task = progress.add_task("cases", total=len(mine))

        def advance(check: Check, verdict: Verdict) -> None:
            progress.update(task, advance=1, description=check.name)

        settings = CheckSettings(
            request.device,
            request.jobs,
            limit=request.timeout,
            budget=request.budget,
            child="weft.testing.conformance.onnx_child",
            more={"suites": list(request.suites or SUITES)},
            lives=1000,
        )
        left = run_checks(mine, settings, journal, advance)
    known = journal.results()
    found = {check: known[check.key] for check in mine if check.key in known}
    _report(terminal, found, left)


def _report(terminal: Terminal, found: dict[Check, Verdict], left: Sequence[Check]) -> None:
    failed = {check: verdict for check, verdict in found.items() if not verdict["ok"]}
    groups: dict[str, list[str]] = {}
    for check, verdict in failed.items():
        groups.setdefault(_reason(verdict), []).append(check.name)
    table = Table(title="Failures by reason", title_justify="left")
    for column in ("cases", "reason", "for example"):
        table.add_column(column, overflow="fold")
    for reason, names in sorted(groups.items(), key=lambda entry: -len(entry[1])):
        table.add_row(str(len(names)), Text(reason), Text(names[0]))
    if groups:
        terminal.show(table)
    suites: dict[str, dict[str, int]] = {}
    for suite in dict.fromkeys(check.kind for check in found):
        counted = Counter(verdict.get("status", "error") for check, verdict in found.items() if check.kind == suite)
        suites[suite] = {"cases": counted.total(), **counted}
        terminal.show(Text(f"{suite}: {counted['passed']:,} of {counted.total():,} passed"))
    wrong = [check.name for check, verdict in failed.items() if verdict.get("status") == "wrong"]
    share = (len(found) - len(failed)) / max(len(found), 1)
    text = f"{len(found) - len(failed):,} of {len(found):,} cases passed, {share:.1%}; {len(wrong)} wrong"
    terminal.show(Text(text + (f"; no time for {len(left):,}: go on with --resume" if left else ""), style="bold"))
    ok = bool(found) and share >= ENOUGH and not wrong and not left
    terminal.finish(
        {
            "ok": ok,
            "passed": len(found) - len(failed),
            "cases": len(found),
            "share": share,
            "suites": suites,
            "wrong": wrong,
            "failed": {check.key.strip(): _reason(verdict, whole=True) for check, verdict in failed.items()},
            "not_begun": [check.key.strip() for check in left],
        },
        code=0 if ok else 1,
    )


def _reason(verdict: Verdict, whole: bool = False) -> str:
    """Why a case failed; names of nodes and numbers are left out, so that like reasons are one."""
    said = f"{verdict.get('status', 'error')}: {verdict['said']}"
    return said if whole else re.sub(r"node '[^']*' |whose outputs are \([^)]*\)|-?\d[\d.,e+-]*", "…", said)[:160]
