"""`python -m weft.testing.faults`: each kind of fault in turn, by cases or seconds; it goes on where it stopped."""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.testing.conformance.journal import Journal, commit
from weft.testing.faults.children import Outcome
from weft.testing.faults.programs import captured_programs, use_cache
from weft.testing.faults.storage import folder

KINDS: dict[str, tuple[str, str, int, int]] = {
    "kills": ("storage", "kills", 1000, 1),
    "flips": ("storage", "flips", 1000, 1),
    "cold": ("storage", "cold_starts", 2, 1),
    "disks": ("storage", "disks", 20, 1),
    "hostile": ("storage", "hostile", 20, 1),
    "keys": ("keys", "keys", 180, 1),
    "memory": ("calls", "short_memory", 200, 1),
    "threads": ("calls", "threads", 24, 2),
    "forks": ("calls", "forks", 40, 2),
    "calls": ("calls", "calls_within", 60, 2),
    "interrupts": ("calls", "interrupts", 400, 2),
    "leaks": ("leaks", "leaks", 10000, 1),
}
"""Where each kind is, how many cases of it are tried, and in how many threads torch works: forks need one."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.testing.faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help=f"which of {', '.join(KINDS)}; all by default")
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--seconds", type=float, help="stop each kind after so many seconds, whatever its count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("reports/faults.jsonl"), help="what is done, for the next run")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have done")
    given = parser.parse_args(arguments)
    kinds = list(given.kinds) or list(KINDS)
    if len(kinds) > 1:  # a process of its own for each: what one leaves behind must not touch the next
        return max(_apart(kind, given) for kind in kinds)
    return _run(kinds[0], given)


def _apart(kind: str, given: Any) -> int:
    options = ["--seed", str(given.seed), "--log", str(given.log)]
    options += [f"--count={given.count}"] * (given.count is not None)
    options += [f"--seconds={given.seconds}"] * (given.seconds is not None)
    options += ["--fresh"] * given.fresh
    code = subprocess.run([sys.executable, "-m", "weft.testing.faults", kind, *options]).returncode
    if code < 0:
        print(f"{kind}: the process ended with signal {-code}")
    return 1 if code else 0


def _run(kind: str, given: Any) -> int:
    where, name, count, threads = KINDS[kind]
    journal = Journal(given.log, f"{commit()} {given.seed}")
    if given.fresh:
        journal.forget([kind])
    before: dict[str, Any] = journal.results().get(kind, {})
    wanted, done = given.count or count, int(before.get("done", 0))
    counts: Counter[str] = Counter(before.get("outcomes", {}))
    said: Counter[str] = Counter(before.get("said", {}))
    torch.set_num_threads(threads)
    logging.getLogger("weft").setLevel(logging.ERROR)
    with folder() as root:
        use_cache(str(root))
        make: Callable[..., Iterator[Outcome]] = getattr(importlib.import_module(f"weft.testing.faults.{where}"), name)
        until, shown = time.monotonic() + (given.seconds or 1e9), time.monotonic()
        if done < wanted:
            for outcome in make(captured_programs(), random.Random(f"{given.seed} {done}")):
                done += 1
                counts[outcome.kind] += 1
                if outcome.is_bad:
                    said[outcome.said] += 1
                    print(f"{kind}: {outcome.kind}: {outcome.said}", flush=True)
                over = done >= wanted or time.monotonic() > until
                if over or time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    journal.add(kind, {"done": done, "outcomes": dict(counts), "said": dict(said)})
                    if sys.stderr.isatty():
                        print(f"\r{kind}: {done} of {wanted}", end="\r", file=sys.stderr, flush=True)
                if over:
                    last = outcome.said if not outcome.is_bad else ""
                    print(f"{kind}: {done} of {wanted}: {_text(counts)}{f' ({last})' if last else ''}", flush=True)
                    break
        else:
            print(f"{kind}: {done} of {wanted}, from an earlier run: {_text(counts)}")
    return 1 if said else 0


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
