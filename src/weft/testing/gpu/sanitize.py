"""compute-sanitizer over the ops' kernels, or over tests: several processes at once, each with a part of them.

`python -m weft.testing.gpu.sanitize --tool racecheck [--shard i/n] [--jobs 16] [tests/gpu/...]`. A process that reports
nothing ends with 0; the tool makes it end otherwise where it finds something. Parts that were clean are not run again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from weft.testing.conformance.journal import Journal, commit

LEAST_KERNELS = 150
FOUND = 99
"""The exit code that the tool gives where it has something to report."""
LIMIT = 460.0
# A process of its own for so many parts of a shard: each watches few kernels, and a broken context ends only one.
PARTS = 16


@dataclass(frozen=True)
class Watched:
    """What one process under the tool gave."""

    part: str
    ok: bool
    ran: int
    """Kernels, or tests."""
    said: str


def command(tool: str, part: str, python: Sequence[str], tests: Sequence[str] = ()) -> list[str]:
    """The command that watches one part of the ops' samples, or of the tests in files."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    ops = ["-m", "weft.testing.gpu.op_checks", part, f"--seconds={LIMIT - 60}"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--shard", part, *tests]
    watched = [*python, *(pytest if tests else ops)]
    return [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", *watched]


def watch(line: Sequence[str], part: str) -> Watched:
    """Run one process and read what it said."""
    # Memory that torch keeps would hide accesses behind a tensor; without it, no graph can be captured.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "WEFT_CACHE": "0", "WEFT_CUDA_GRAPHS": "0"}
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, env=environment)
    except subprocess.TimeoutExpired:
        return Watched(part, False, 0, f"took longer than {LIMIT:g} s")
    except OSError as error:
        return Watched(part, False, 0, f"compute-sanitizer cannot be run: {error}")
    said = done.stdout + done.stderr
    found = re.search(r"(\d+) kernels|(\d+) passed", said)
    count = int(found[1] or found[2]) if found else 0
    return Watched(
        part, done.returncode == 0 and found is not None, count, "" if done.returncode == 0 else said[-4000:]
    )


def main(arguments: Sequence[str] | None = None, python: Sequence[str] = (sys.executable,)) -> int:
    """Watch a shard of the samples or tests; 1 if something was reported, or no test or too few kernels of ops ran."""
    parser = argparse.ArgumentParser(description="compute-sanitizer over the ops' kernels, or over tests")
    parser.add_argument("tests", nargs="*", help="files of tests; the ops' kernels if there are none")
    parser.add_argument("--tool", default="memcheck", choices=["memcheck", "racecheck", "synccheck", "initcheck"])
    parser.add_argument("--shard", default="0/1", help="a part: 0/2 is the first half")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    given = parser.parse_args(arguments)
    index, count = map(int, given.shard.split("/"))
    kind = "tests" if given.tests else "kernels"
    journal = Journal(given.reports / f"sanitize-{given.tool}-{kind}.jsonl", commit())
    clean = {name for name, record in journal.results().items() if record["ok"]}
    whole = PARTS * count
    parts = [f"{number}/{whole}" for number in range(index, whole, count)]
    names = {part: " ".join([part, *sorted(given.tests)]) for part in parts}
    waiting = [part for part in parts if names[part] not in clean]

    def watch_part(part: str) -> Watched:
        return watch(command(given.tool, part, python, given.tests), part)

    with ThreadPoolExecutor(given.jobs) as pool:
        for watched in pool.map(watch_part, waiting):
            journal.add(names[watched.part], {"ok": watched.ok, "ran": watched.ran})
            print(f"{given.tool} {watched.part}: {'clean' if watched.ok else 'REPORTS'}, {watched.ran} {kind}")
            if watched.said:
                print(watched.said, flush=True)
    known = {name: record for name, record in journal.results().items() if name in names.values()}
    ran = sum(record["ran"] for record in known.values())
    least = 1 if given.tests else LEAST_KERNELS
    ok = all(record["ok"] for record in known.values()) and ran * count >= least
    print(f"{given.tool}: {ran} {kind}, {'no report' if ok else 'NOT clean'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
