"""`weft fuzz`: random programs through Weft, judged, and what fails kept as short scripts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from weft.testing.conformance.journal import Journal, commit
from weft.testing.fuzz.kinds import NAMES
from weft.testing.fuzz.runner import FuzzRun, FuzzSettings
from weft.testing.fuzz.verdict import FAILURES, Verdict
from weft.tools.terminal import Terminal, UsageError, check_folder, counted

JOURNAL = "fuzz.jsonl"
WITHOUT_END = 1_000_000


@dataclass(frozen=True)
class FuzzRequest:
    """What the command line asks for."""

    kinds: tuple[str, ...]
    seed: int
    count: int | None
    minutes: float | None
    jobs: int
    device: str
    timeout: float
    shrinking: float
    resume: bool
    reports: Path
    backend: str = ""


def fuzz(terminal: Terminal, request: FuzzRequest) -> None:
    """Run the kinds one after the other, each with its part of the time."""
    from weft.testing.devices import device_named

    for name in request.kinds:
        if name not in NAMES:
            raise UsageError(f"no kind of program is called {name}", hint=f"there are {', '.join(NAMES)}")
    device_named(request.device)
    if "nnsmith" in request.kinds:
        from weft.testing.fuzz.nnsmith_models import check_installed

        check_installed()
    check_folder(request.reports, "--reports")
    kept = request.reports / "fuzz"
    journal = Journal(request.reports / JOURNAL, f"{commit()} {request.device} {request.backend}".strip())
    count = request.count or (WITHOUT_END if request.minutes is not None else 200)
    seconds = None if request.minutes is None else request.minutes * 60 / len(request.kinds)
    if not request.resume:
        journal.forget({f"{kind} {request.seed + n}" for kind in request.kinds for n in range(count)})
    tally, failures, not_begun = Counter[str](), dict[str, str](), 0

    def note(kind: str, seed: int, verdict: Verdict) -> None:
        tally[verdict.status] += 1
        if verdict.failed:
            failures[f"{kind} {seed}"] = f"{verdict.status}: {verdict.reason}"
            terminal.show(Text.assemble((verdict.status, "red"), f" {kind} {seed}: {verdict.reason}"))

    for kind in request.kinds:
        settings = FuzzSettings(
            kind,
            request.seed,
            count,
            seconds,
            request.jobs,
            request.device,
            request.timeout,
            request.shrinking,
            kept,
            backend=request.backend,
        )
        left = FuzzRun(settings, journal, lambda seed, verdict, kind=kind: note(kind, seed, verdict)).run()
        if left and request.count is not None:
            not_begun += len(left)
            terminal.show(f"no time for {counted(len(left), 'program')} of {kind}: go on with --resume")
    earlier = [record for name, record in journal.results().items() if name.partition(" ")[0] in request.kinds]
    total = Counter(record["status"] for record in earlier)
    words = ", ".join(f"{number:,} {status}" for status, number in total.most_common())
    terminal.show(
        Text(f"{counted(sum(tally.values()), 'program')} now, {len(earlier):,} in all: {words}", style="bold")
    )
    wrong = sum(total[status] for status in FAILURES)
    figures = {"ok": not wrong, "now": dict(tally), "all": dict(total), "failures": failures, "kept": str(kept)}
    terminal.finish({**figures, "not_begun": not_begun}, code=1 if wrong else 0)
