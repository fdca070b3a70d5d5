"""Results of a long run, a JSON object a line, written as they come: a run that is ended goes on where it stopped.

A line is kept with its `stamp`, which is what results belong to: a commit, a device. Lines of another are not resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any


class Journal:
    """A file of results, to which a run adds; several parts of a run may share it, one after the other."""

    def __init__(self, path: Path, stamp: str = "") -> None:
        self._path, self._stamp = path, stamp
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def forget(self, names: Collection[str]) -> None:
        """Drop the results of these names: they will be had anew."""
        kept = [line for line, entry in self._entries() if entry["name"] not in names]
        self._path.write_text("".join(f"{line}\n" for line in kept))

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Write a result at once, so that nothing is lost with the process."""
        with self._path.open("a") as sink:
            print(json.dumps({"name": name, "stamp": self._stamp, "record": record}), file=sink, flush=True)

    def results(self) -> dict[str, dict[str, Any]]:
        """The results by name; the last one where there are several."""
        return {entry["name"]: entry["record"] for _, entry in self._entries() if entry["stamp"] == self._stamp}

    def _entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in self._path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the process was ended while it wrote
                yield line, json.loads(line)


def part(things: Sequence[Any], shard: tuple[int, int] | None) -> list[Any]:
    """Every n-th of the things from the i-th on, for a shard (i, n)."""
    index, count = shard or (0, 1)
    return list(things[index::count])


def commit() -> str:
    """The commit that is measured: from git, or from `WEFT_COMMIT` where the tree travelled without its history."""
    given = os.environ.get("WEFT_COMMIT")
    if given:
        return given
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def stamp() -> dict[str, str]:
    """What every result file says of itself."""
    return {"date": str(date.today()), "commit": commit()}
