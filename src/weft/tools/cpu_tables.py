"""Tables of several runs of `weft bench cpu`, side by side: a column for each processor and number of threads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from weft.errors import WeftError

Row: TypeAlias = Mapping[str, Any]

_MACHINE = re.compile(r"^\S+ \((?P<architecture>\w+),.* (?P<threads>\d+) threads;")
_NAMES = {"aarch64": "AArch64", "x86_64": "x86-64"}
LOST_BELOW = 0.95


@dataclass(frozen=True)
class CpuResults:
    """What one run measured, and where."""

    machine: str
    architecture: str
    threads: int
    rows: tuple[Row, ...]

    @property
    def place(self) -> str:
        return f"{_NAMES.get(self.architecture, self.architecture)}, {self.threads} threads"


def read_cpu_results(path: Path) -> CpuResults | None:
    """A file that holds what `weft bench cpu --json` printed; None if it holds something else."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeftError(f"{path} cannot be read: {error}") from error
    given: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    said = _MACHINE.match(str(given.get("machine", "")))
    if said is None:
        return None
    cases: list[dict[str, Any]] = given.get("cases", [])
    timed = tuple(row for row in cases if {"suite", "name", "ratio", "weft"} <= row.keys())
    return CpuResults(said.string, said["architecture"], int(said["threads"]), timed)


def side_by_side(results: Sequence[CpuResults]) -> dict[str, str]:
    """A table for each suite; of a case that stands in several files of one place, the last counts."""
    places = {each.place: each.machine for each in results}
    suites: dict[str, dict[str, dict[str, Row]]] = {}
    for each in results:
        for row in each.rows:
            suites.setdefault(row["suite"], {}).setdefault(row["name"], {})[each.place] = row
    texts: dict[str, str] = {}
    for suite, cases in suites.items():
        shown = [place for place in places if any(place in found for found in cases.values())]
        head = [
            "case",
            *(f"{place}: {what}" for place in shown for what in ("best peer, ms", "Weft, ms", "ratio (95%)")),
        ]
        lines = [head, ["---", *("---:" for _ in head[1:])]]
        lines += [
            [name, *(cell for place in shown for cell in _cells(found.get(place)))] for name, found in cases.items()
        ]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        words = [f"{place}: {_in_words([c[place] for c in cases.values() if place in c])}" for place in shown]
        machines = "\n\n".join(dict.fromkeys(places[place] for place in shown))
        texts[suite] = f"{table}\n{'; '.join(words)}\n\n{machines}\n"
    return texts


def _cells(row: Row | None) -> list[str]:
    if row is None or row.get("ratio") is None:
        return ["–", "–" if row is None or row.get("weft") is None else _ms(row["weft"]), "–"]
    peer = row.get("peer") or ""
    name = f" ({peer})" if peer in ("eager", "inductor", "onnxruntime") else ""
    time = _ms(row[peer]) if row.get(peer) is not None else "–"
    return [time + name, _ms(row["weft"]), f"{row['ratio']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _in_words(rows: Sequence[Row]) -> str:
    ratios = {row["name"]: row["ratio"] for row in rows if row.get("ratio") is not None}
    if not ratios:
        return "no case has a peer here"
    mean = 1.0
    for ratio in ratios.values():
        mean *= ratio ** (1 / len(ratios))
    worst = min(ratios, key=ratios.__getitem__)
    lost = sum(row["ratio_high"] < LOST_BELOW for row in rows if row.get("ratio") is not None)
    return f"geometric mean {mean:.2f}, worst {ratios[worst]:.2f} ({worst}), {lost} surely below {LOST_BELOW}"
