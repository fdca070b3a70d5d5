"""`weft conform models`, `training`, `raises` and `tutorials --device`: against eager, over child processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from weft.testing.conformance.check_runner import Check, CheckSettings, Verdict, run_checks
from weft.testing.conformance.journal import Journal, commit, part
from weft.tools.terminal import Terminal, UsageError, check_folder, counted, parse_shard

JOURNAL = "conform-checks.jsonl"


@dataclass(frozen=True)
class CheckRequest:
    """What the command line asks for."""

    device: str
    shard: str | None
    resume: bool
    jobs: int
    budget: float
    reports: Path
    steps: int = 20
    checkout: Path | None = None


def conform_models(terminal: Terminal, names: Sequence[str], dtypes: Sequence[str], request: CheckRequest) -> None:
    """The families forward and one training step, in each element type."""
    from weft.testing.models import FULL_SIZE, SMALL

    _known(names, [*SMALL, *FULL_SIZE])
    _run(terminal, [Check("model", name, dtype) for dtype in dtypes for name in names or SMALL], request)


def conform_training(terminal: Terminal, names: Sequence[str], dtypes: Sequence[str], request: CheckRequest) -> None:
    """Steps of training, whose loss must follow eager's."""
    from weft.testing.models import FULL_SIZE, SMALL

    _known(names, [*SMALL, *FULL_SIZE])
    _run(terminal, [Check("training", name, dtype) for dtype in dtypes for name in names or ["gpt2_small"]], request)


def conform_raises(terminal: Terminal, names: Sequence[str], request: CheckRequest) -> None:
    """Operators that index, divide or have preconditions: eager raises if and only if the compiled program does."""
    from weft.testing.conformance.raise_cases import units

    known = [unit.rpartition(" ")[::2] for unit in units()]
    names_of = {op: {op, op.rpartition(".")[0]} for op, _ in known}
    unknown = [name for name in names if all(name not in several for several in names_of.values())]
    if unknown:
        raise UsageError(
            f"no operator that could raise is called {', '.join(unknown)}",
            hint="names are as in PyTorch's database: gather, nn.functional.embedding",
        )
    chosen = [(op, dtype) for op, dtype in known if not names or names_of[op] & set(names)]
    _run(terminal, [Check("raises", op, dtype) for op, dtype in chosen], request)


def conform_tutorials_on(terminal: Terminal, names: Sequence[str], request: CheckRequest) -> None:
    """The kernels of Triton's tutorials on tensors of a device."""
    from weft.testing.triton.triton_tutorial_cases import CASES

    chosen = [file for file in CASES if not names or any(name in file for name in names)]
    _run(terminal, [Check("tutorial", file) for file in chosen], request)


def _known(names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"no model is called {', '.join(unknown)}", hint=f"there are {', '.join(known)}")


def _run(terminal: Terminal, checks: Sequence[Check], request: CheckRequest) -> None:
    from weft.testing.devices import device_named

    device_named(request.device)
    mine: list[Check] = part(checks, parse_shard(request.shard))
    check_folder(request.reports, "--reports")
    journal = Journal(request.reports / JOURNAL, f"{commit()} {request.device}")
    if not request.resume:
        journal.forget({check.key for check in mine})

    def say(check: Check, verdict: Verdict) -> None:
        word = ("right", "green") if verdict["ok"] else ("WRONG", "red")
        terminal.show(Text.assemble(word, f" {check.key} {verdict['seconds']:.1f} s"))
        if verdict["said"]:
            terminal.show(Text(verdict["said"]))

    settings = CheckSettings(
        request.device,
        request.jobs,
        budget=request.budget,
        steps=request.steps,
        checkout=str(request.checkout.absolute()) if request.checkout else "",
    )
    left = run_checks(mine, settings, journal, say)
    known = journal.results()
    found = {check.key: known[check.key] for check in checks if check.key in known}
    wrong = {key: verdict["said"] for key, verdict in found.items() if not verdict["ok"]}
    text = f"{len(found) - len(wrong)} of {counted(len(found), 'check')} right on {request.device}"
    terminal.show(Text(text + (f"; no time for {len(left)}: go on with --resume" if left else ""), style="bold"))
    ok = bool(found) and not wrong and not left
    figures = {"ok": ok, "device": request.device, "checks": found, "wrong": wrong}
    terminal.finish({**figures, "not_begun": [check.key for check in left]}, code=0 if ok else 1)
