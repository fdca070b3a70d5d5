"""`weft conform hops`: torch's database of higher-order operators; what torch helps with is counted apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from weft.testing.conformance.check_runner import Check, CheckSettings, Verdict, run_checks
from weft.testing.conformance.journal import Journal, commit
from weft.tools.terminal import Terminal, UsageError, check_folder

JOURNAL = "conform-hops.jsonl"
COLORS = {"whole": "green", "helped": "yellow", "skipped": "yellow", "wrong": "red", "error": "red"}


@dataclass(frozen=True)
class HopRequest:
    """What the command line asks for."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    dynamic: bool
    device: str
    resume: bool
    jobs: int
    budget: float
    timeout: float
    reports: Path


def conform_hops(terminal: Terminal, request: HopRequest) -> None:
    """Run the entries, show a row for each, and exit with 1 if one was wrong or failed."""
    from weft.testing.conformance.hop_cases import entries, takes
    from weft.testing.devices import device_named

    device_named(request.device)
    called = {name: {name, op.name} for name, op in entries().items()}
    for name in request.names:
        if all(name not in names for names in called.values()):
            raise UsageError(f"hop_db has no entry called {name}", hint=f"there are {', '.join(called)}")
    check_folder(request.reports, "--reports")
    kind = "dynamic" if request.dynamic else "static"
    try:
        checks = [
            Check(kind, name, dtype)
            for dtype in request.dtypes
            for name, names in called.items()
            if (not request.names or names & set(request.names)) and takes(name, dtype)
        ]
    except AttributeError as error:
        raise UsageError(f"torch has no such element type: {error}", hint="some are float32 and int64") from error
    if not checks:
        raise UsageError(f"none of these entries takes {' or '.join(request.dtypes)}")
    journal = Journal(request.reports / JOURNAL, f"{commit()} {request.device}")
    if not request.resume:
        journal.forget({check.key for check in checks})
    settings = CheckSettings(
        request.device,
        request.jobs,
        limit=request.timeout,
        budget=request.budget,
        child="weft.testing.conformance.hop_cases",
    )

    def say(check: Check, verdict: Verdict) -> None:
        status = verdict.get("status", "error")
        terminal.show(Text.assemble((status, COLORS[status]), f" {check.key} {verdict['seconds']:.1f} s"))

    left = run_checks(checks, settings, journal, say)
    known = journal.results()
    _report(terminal, {check: known[check.key] for check in checks if check.key in known}, left, request.device)


def _report(terminal: Terminal, found: dict[Check, Verdict], left: Sequence[Check], device: str) -> None:
    table = Table(title=f"hop_db on {device}", title_justify="left")
    for column in ("entry", "type", "verdict", "modes", "said"):
        table.add_column(column, overflow="fold")
    for check, verdict in found.items():
        status = verdict.get("status", "error")
        row = check.name, check.dtype, Text(status, style=COLORS[status]), ", ".join(verdict.get("modes", ()))
        table.add_row(*row, Text(verdict["said"]))
    terminal.show(table)
    counts = Counter(verdict.get("status", "error") for verdict in found.values())
    text = f"{len(found)} entries: " + ", ".join(f"{counts[status]} {status}" for status in COLORS)
    terminal.show(Text(text + (f"; no time for {len(left)}: go on with --resume" if left else ""), style="bold"))
    ok = bool(found) and all(verdict["ok"] for verdict in found.values()) and not left
    entries = {check.key: verdict for check, verdict in found.items()}
    figures = {"ok": ok, "device": device, **{status: counts[status] for status in COLORS}, "entries": entries}
    terminal.finish({**figures, "not_begun": [check.key for check in left]}, code=0 if ok else 1)
