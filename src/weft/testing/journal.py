"""Results of a long run, a JSON object a line, written as they come: a run that is ended goes on where it stopped.

A line is kept with its `stamp` (what the results belong to: a commit, a device); lines of another stamp are not resumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Journal:
    """A file of results. Without `resume` it starts empty."""

    def __init__(self, path: Path, stamp: str = "", *, resume: bool = False) -> None:
        self._path, self._stamp = path, stamp
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume or not path.exists():
            path.write_text("")

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Write a result at once, so that nothing is lost with the process."""
        with self._path.open("a") as sink:
            print(json.dumps({"name": name, "stamp": self._stamp, "record": record}), file=sink, flush=True)

    def results(self) -> dict[str, dict[str, Any]]:
        """The results by name; the last one where there are several."""
        found: dict[str, dict[str, Any]] = {}
        for line in self._path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the process was ended while it wrote
                continue
            if entry["stamp"] == self._stamp:
                found[entry["name"]] = entry["record"]
        return found


def part(things: Sequence[Any], shard: tuple[int, int] | None) -> list[Any]:
    """Every n-th of the things from the i-th on, for a shard (i, n)."""
    index, count = shard or (0, 1)
    return list(things[index::count])
