"""`weft conform zoo`: every family of the installed transformers, small, against eager, over child processes.

Verdicts go to a journal as they come. `--output` keeps them as a result file, and `--into` makes a page of the docs of
the newest result file of each machine.
"""

from __future__ import annotations

import json
import platform
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.text import Text

from weft.testing.conformance.check_runner import Check, CheckSettings, Verdict, run_checks
from weft.testing.conformance.journal import Journal, part, stamp
from weft.tools.terminal import Terminal, UsageError, check_file, check_folder, parse_shard

JOURNAL = "conform-zoo.jsonl"
WORKER = "weft.testing.zoo.worker"
MODES = ("inference", "training")


@dataclass(frozen=True)
class ZooRequest:
    """What the command line asks for."""

    device: str
    dtypes: tuple[str, ...]
    shard: str | None
    resume: bool
    jobs: int
    budget: float
    timeout: float
    memory: float
    sample: int | None
    seed: int
    inductor: bool
    speed: bool
    reports: Path
    output: Path | None
    machine: str | None


def conform_zoo(terminal: Terminal, names: Sequence[str], request: ZooRequest) -> None:
    """Judge the families that were chosen, say what is wrong, and exit with 1 if something is."""
    import torch

    from weft.testing.devices import device_named
    from weft.testing.zoo.families import family_names

    device_named(request.device)
    known = family_names()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"no family is called {', '.join(unknown)}", hint="names are transformers' model types: llama")
    for name in request.dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise UsageError(f"torch has no element type called {name}", hint="float32 and bfloat16, say")
    if request.output is not None:
        check_file(request.output, "--output")
    check_folder(request.reports, "--reports")
    families = list(names) or known
    # The order is that of the seed, so that what a budget leaves undone is as random as a sample.
    random.Random(request.seed).shuffle(families)
    families = families[: request.sample]
    checks = [Check("family", name, dtype) for dtype in request.dtypes for name in families]
    mine: list[Check] = part(checks, parse_shard(request.shard))
    journal = Journal(request.reports / JOURNAL, request.device)
    if not request.resume:
        journal.forget({check.key for check in mine})
    more = {"memory": request.memory, "speed": request.speed, "inductor": request.inductor}
    threads = 1 if request.device != "cpu" else max(torch.get_num_threads() // request.jobs, 1)
    settings = CheckSettings(
        request.device,
        request.jobs,
        limit=request.timeout,
        budget=request.budget,
        child=WORKER,
        more={**more, "threads": threads},
        lives=20,
    )
    left = run_checks(mine, settings, journal, lambda check, verdict: _say(terminal, check, verdict))
    results = journal.results()
    found = {check.key: results[check.key] for check in checks if check.key in results}
    if request.output is not None:
        _write(request.output, request, found)
    figures = counts(found)
    summary = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in figures.items())
    terminal.show(Text(summary + (f"; no time for {len(left)}: go on with --resume" if left else ""), style="bold"))
    wrong = {key: cause_of(record) for key, record in found.items() if not record["ok"]}
    ok = bool(found) and not wrong and not left
    terminal.finish({"ok": ok, **figures, "failures": wrong, "not_begun": len(left)}, code=0 if ok else 1)


def counts(found: dict[str, Verdict]) -> dict[str, int]:
    """How many checks came to what; a check is a family in an element type."""
    ran = [record for record in found.values() if "no_config" not in record]
    return {
        "checks": len(found),
        "ran": len(ran),
        "right": sum(record["ok"] for record in ran),
        "not_right": sum(not record["ok"] for record in ran),
        "no_config": len(found) - len(ran),
    }


def cause_of(record: Verdict) -> str:
    """Why a family is not right, in a line."""
    if record.get("said"):
        return f"{record.get('begun', 'while it ran')}: {record['said']}"
    bad = (mode for mode in MODES if record.get(mode, {}).get("status") in ("wrong", "error"))
    return "; ".join(f"{mode}: {record[mode].get('reason', '')}" for mode in bad)


def _say(terminal: Terminal, check: Check, verdict: Verdict) -> None:
    if "no_config" in verdict:
        terminal.show(Text.assemble(("no config", "yellow"), f" {check.name}: {verdict['no_config'][:200]}"))
        return
    word = ("right", "green") if verdict["ok"] else ("WRONG", "red")
    modes = ", ".join(f"{mode} {verdict[mode]['status']}" for mode in MODES if mode in verdict)
    terminal.show(Text.assemble(word, f" {check.name} {check.dtype}: {modes}, {verdict['seconds']:.1f} s"))
    if not verdict["ok"]:
        terminal.show(Text(cause_of(verdict)))


def _write(path: Path, request: ZooRequest, found: dict[str, Verdict]) -> None:
    machine = request.machine or (platform.machine() if request.device == "cpu" else request.device)
    versions = {name: version(name) for name in ("torch", "transformers")}
    head = json.dumps({**stamp(), "suite": "zoo", "machine": machine, "device": request.device, "versions": versions})
    lines = [f"{json.dumps(key)}: {json.dumps(record)}" for key, record in sorted(found.items())]
    path.write_text(head[:-1] + ', "checks": {\n' + ",\n".join(lines) + "\n}}\n")
