"""compute-sanitizer over the ops' kernels: several processes at once, each with a part of the samples.

`python -m weft.testing.gpu.sanitize --tool racecheck [--shard i/n] [--jobs 16]`. A process that reports nothing ends
with 0; the tool makes it end otherwise where it finds something. Parts that were clean are not run again.
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

from weft.testing.journal import Journal, commit

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
    kernels: int
    said: str


def command(tool: str, part: str, python: Sequence[str]) -> list[str]:
    """The command that watches one part of the samples. Memory that torch keeps would hide accesses behind a tensor."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    watched = [*python, "-m", "weft.testing.gpu.op_checks", part, f"--seconds={LIMIT - 60}"]
    return [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", *watched]


def watch(line: Sequence[str], part: str) -> Watched:
    """Run one process and read what it said."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "WEFT_CACHE": "0"}
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, env=environment)
    except subprocess.TimeoutExpired:
        return Watched(part, False, 0, f"took longer than {LIMIT:g} s")
    except OSError as error:
        return Watched(part, False, 0, f"compute-sanitizer cannot be run: {error}")
    said = done.stdout + done.stderr
    found = re.search(r"(\d+) cases, (\d+) kernels", said)
    count = int(found[2]) if found else 0
    return Watched(
        part, done.returncode == 0 and found is not None, count, "" if done.returncode == 0 else said[-4000:]
    )


def main(arguments: Sequence[str] | None = None, python: Sequence[str] = (sys.executable,)) -> int:
    """Watch a shard of the samples; 1 if something was reported, or too few kernels ran."""
    parser = argparse.ArgumentParser(description="compute-sanitizer over the ops' kernels")
    parser.add_argument("--tool", default="memcheck", choices=["memcheck", "racecheck", "synccheck", "initcheck"])
    parser.add_argument("--shard", default="0/1", help="a part: 0/2 is the first half")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    given = parser.parse_args(arguments)
    index, count = map(int, given.shard.split("/"))
    journal = Journal(given.reports / f"sanitize-{given.tool}.jsonl", commit())
    clean = {name for name, record in journal.results().items() if record["ok"]}
    whole = PARTS * count
    parts = [f"{number}/{whole}" for number in range(index, whole, count)]
    with ThreadPoolExecutor(given.jobs) as pool:
        waiting = [part for part in parts if part not in clean]
        for watched in pool.map(watch, [command(given.tool, part, python) for part in waiting], waiting):
            journal.add(watched.part, {"ok": watched.ok, "kernels": watched.kernels})
            print(f"{given.tool} {watched.part}: {'clean' if watched.ok else 'REPORTS'}, {watched.kernels} kernels")
            if watched.said:
                print(watched.said, flush=True)
    known = {name: record for name, record in journal.results().items() if name in parts}
    kernels = sum(record["kernels"] for record in known.values())
    ok = all(record["ok"] for record in known.values()) and kernels * count >= LEAST_KERNELS
    print(f"{given.tool}: {kernels} kernels, {'no report' if ok else 'NOT clean'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
