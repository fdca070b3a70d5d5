"""What `weft bench gpu` found, as files, tables and Markdown: made of plain rows, so that files make them too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from weft.errors import WeftError
from weft.testing.bench.benchmark import INDUCTOR, WEFT, geometric_mean
from weft.tools.terminal import counted

Row = dict[str, Any]

LOST_BELOW = 0.95
LIMIT_COLUMN = "share of the limit"
COLUMNS = (
    "case",
    "Weft",
    "best peer",
    "unit",
    "× best peer (95%)",
    LIMIT_COLUMN,
    "compile: Inductor, Weft, s",
    "",
)
OWN_COLUMN = "own kernels × best peer"
"""Stands before the limit's where Weft's own kernels ran beside those it chose."""
_OF_A_RUN = ("ok", "suites", "cases", "not_begun")
"""What a file has beside what its rows belong to."""
_NARROW = re.compile(r"_(?:int4|int8|fp8|mxfp4|nvfp4)(?:_\w+)?$")
PREFIX = "gpu-"
"""Of the suites' names where they stand beside those of the CPU."""


@dataclass
class GpuResults:
    """Rows of one or several suites, and what they belong to: date, commit, GPU, driver, versions."""

    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list[Row])
    not_begun: list[str] = field(default_factory=list[str])
    file: str = ""

    @property
    def ok(self) -> bool:
        return all(row["ok"] for row in self.rows)

    def suites(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["suite"], []).append(row)
        return found

    def figures(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            **self.about,
            "suites": {suite: summary(rows) for suite, rows in self.suites().items()},
            "cases": self.rows,
            "not_begun": self.not_begun,
        }

    def tables(self) -> list[RenderableType]:
        """For people to read."""
        parts: list[RenderableType] = []
        for suite, rows in self.suites().items():
            table = Table(title=f"{suite}: medians{'' if suite == 'train' else ', L2 flushed'}", title_justify="left")
            columns, *lines = _lines(rows)
            for number, column in enumerate(columns):
                table.add_column(column, justify="right" if 0 < number < len(columns) - 1 else "left", overflow="fold")
            for line in lines:
                table.add_row(*map(Text, line))
            parts += [table, Text(in_words(summary(rows))), *(profile for row in rows for profile in profiles(row))]
        if self.not_begun:
            parts.append(Text(f"no time was left for {', '.join(self.not_begun)}; go on with --resume"))
        return [*parts, Text(self.machine, style="dim")]

    @property
    def machine(self) -> str:
        known = [self.about.get("gpu"), f"driver {self.about.get('driver')}", f"torch {self.about.get('torch')}"]
        known.append(f"commit {self.about.get('commit')}, {self.about.get('date')}")
        return "; ".join([*map(str, known), *([f"`{self.file}`"] if self.file else [])])

    def markdown(self) -> dict[str, str]:
        """A table for each suite, by the mark that stands for it in a text: `gpu-memory`."""
        return markdown([self])

    def write(self, folder: Path) -> list[Path]:
        """A file for each suite: `2026-11-15-0cf814a-gpu-memory.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for suite, rows in self.suites().items():
            path = folder / f"{self.about['date']}-{self.about['commit']}-{PREFIX}{suite}.json"
            path.write_text(json.dumps(GpuResults(self.about, rows).figures(), indent=1) + "\n", encoding="utf-8")
            written.append(path)
        return written


def read_results(path: Path) -> GpuResults:
    """What `write` wrote."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeftError(f"{path} cannot be read: {error}") from error
    try:
        given: list[Row] = found["cases"]
        rows = [row for row in given if row["suite"] and ("error" in row or "share_of_limit" in row)]
        about: dict[str, Any] = {name: found[name] for name in found if name not in _OF_A_RUN}
    except (TypeError, KeyError):
        given, rows, about = [], [], {}
    if not rows or len(rows) < len(given):
        raise WeftError(f"{path} holds no results of `weft bench gpu`", hint="name files that it wrote: *-gpu-*.json")
    return GpuResults(about, rows, file=path.name)


def markdown(results: Sequence[GpuResults]) -> dict[str, str]:
    """The tables of several results; of a case that stands in more than one of them, the last counts."""
    suites: dict[str, dict[str, tuple[int, Row]]] = {}
    for number, each in enumerate(results):
        for row in each.rows:
            suites.setdefault(row["suite"], {})[row["name"]] = number, row
    texts: dict[str, str] = {}
    for suite, cases in suites.items():
        rows = [row for _, row in cases.values()]
        rest: list[Row] = [{**row, "left_out": {}} for row in rows]
        columns, *others = _lines(rest)
        lines = [columns, ["---", *("---:" for _ in columns[2:]), "---"], *others]
        table = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
        names: dict[int, list[str]] = {}
        for name, (number, _) in cases.items():
            names.setdefault(number, []).append(name)
        of = {number: f": {', '.join(each)}" if len(names) > 1 else "" for number, each in names.items()}
        machines = "\n\n".join(f"{results[number].machine}{said}" for number, said in sorted(of.items()))
        said = "\n\n".join([in_words_apart(rows), *left_out_in_words(rows)])
        texts[PREFIX + suite] = f"{table}\n{said}\n\n{machines}\n"
    return texts


def has_wider_peers(row: Row) -> bool:
    """Whether Weft reads weights of 4 or 8 bits in a case whose peers, which have no such kernel, read 16."""
    return row["suite"] in ("gemv", "moe") and _NARROW.search(row["name"]) is not None


def in_words_apart(rows: Sequence[Row]) -> str:
    """A suite in words; cases whose peers have wider weights, and so more to read, in words of their own."""
    wider = [row for row in rows if has_wider_peers(row)]
    if not wider:
        return in_words(summary(rows))
    same = in_words(summary([row for row in rows if not has_wider_peers(row)]))
    return f"the same weights on both sides: {same}\n\n4 or 8 bits against 16: {in_words(summary(wider))}"


def profiles(row: Row) -> list[Table]:
    """Where a step of a contender goes, by kernel."""
    tables: list[Table] = []
    for name, found in row.get("profile", {}).items():
        table = Table("µs", "times", "kernel", title_justify="left")
        table.title = f"{row['name']}, {name}: {found['us']:.0f} µs in {counted(found['kernels'], 'kernel')}"
        for kernel in found["top"]:
            table.add_row(f"{kernel['us']:.0f}", str(kernel["count"]), Text(kernel["name"][:110]))
        tables.append(table)
    return tables


def left_out_in_words(rows: Sequence[Row]) -> list[str]:
    """Who did not take part in which cases, and why: said once below a table, not in each of its rows."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.get("left_out", {}).items():
            found.setdefault((name, why), []).append(row["name"])
    every = len(rows)
    return [
        f"without {name} ({why}): {'all cases' if len(names) == every else ', '.join(names)}"
        for (name, why), names in found.items()
    ]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The geometric mean and the worst of the ratios, the least share of the limit, and compiling against Inductor."""
    ratios = {row["name"]: row["ratio"] for row in rows if row.get("ratio") is not None}
    shares = {row["name"]: row["share_of_limit"] for row in rows if row.get("share_of_limit") is not None}
    own = [row["own_ratio"] for row in rows if row.get("own_ratio") is not None]
    worst, least = (min(each, key=each.__getitem__, default=None) for each in (ratios, shares))
    return {
        "cases": len(rows),
        "failed": [row["name"] for row in rows if not row["ok"]],
        "geomean": geometric_mean(list(ratios.values())) if ratios else None,
        "worst": ratios[worst] if worst is not None else None,
        "worst_case": worst,
        "own_geomean": geometric_mean(own) if own else None,
        "lost": [row["name"] for row in rows if (row.get("ratio_high") or 1.0) < LOST_BELOW],
        "least_share": shares[least] if least is not None else None,
        "least_share_case": least,
        "compile_ratio": _compile_ratio(rows, "backend_seconds"),
        "first_call_ratio": _compile_ratio(rows, "first_call"),
    }


def _compile_ratio(rows: Sequence[Row], what: str) -> float | None:
    """Weft's seconds over Inductor's, summed over the cases that both compiled."""
    pairs = [(inductor_of(row.get(what, {})), row.get(what, {}).get(WEFT)) for row in rows]
    both = [(theirs, mine) for theirs, mine in pairs if theirs is not None and mine is not None]
    return sum(mine for _, mine in both) / sum(theirs for theirs, _ in both) if both else None


def inductor_of(seconds: Mapping[str, float]) -> float | None:
    """Inductor's in the mode that takes least: its search for kernels is nobody's bar on compile time."""
    return min((each for name, each in seconds.items() if name.startswith(INDUCTOR)), default=None)


def in_words(figures: Mapping[str, Any]) -> str:
    said: list[str] = []
    if figures["geomean"] is not None:
        said.append(f"geometric mean {figures['geomean']:.2f} × the best peer's speed")
        said.append(f"worst {figures['worst']:.2f} ({figures['worst_case']})")
        said.append(f"{counted(len(figures['lost']), 'case')} surely below {LOST_BELOW}")
    if figures["own_geomean"] is not None:
        said.append(f"own kernels {figures['own_geomean']:.2f}")
    if figures["least_share"] is not None:
        said.append(f"least share of the limit {figures['least_share']:.2f} ({figures['least_share_case']})")
    if figures["compile_ratio"]:
        said.append(f"compiles at {1 / figures['compile_ratio']:.2f} × Inductor's speed")
    if figures["failed"]:
        said.append(f"{len(figures['failed'])} failed")
    return "; ".join(said) or "no case has a peer here"


def _lines(rows: Sequence[Row]) -> list[list[str]]:
    """The columns of a suite, and a line for each of its rows."""
    lines: list[list[str]] = [[*COLUMNS], *map(cells, rows)]
    if not any(row.get("own_ratio") for row in rows):
        return lines
    own = [f"{row['own_ratio']:.2f}" if row.get("own_ratio") else "–" for row in rows]
    place = COLUMNS.index(LIMIT_COLUMN)
    return [[*line[:place], each, *line[place:]] for line, each in zip(lines, [OWN_COLUMN, *own], strict=True)]


def cells(row: Row) -> list[str]:
    """A row of a table."""
    if "error" in row:
        return [row["name"], "failed", "–", "", "–", "–", "–", row["error"]]
    low, high = row["ratio_low"], row["ratio_high"]
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f} ({low:.2f}–{high:.2f})"
    share = "–" if row["share_of_limit"] is None else f"{row['share_of_limit']:.1%}"
    peer = "–" if row["peer"] is None else f"{row['peer']:.4g} {row['peer_name']}"
    took = row["backend_seconds"]
    compiling = ", ".join("–" if each is None else f"{each:.2f}" for each in (inductor_of(took), took.get(WEFT)))
    mine = "failed" if row["weft"] is None else f"{row['weft']:.4g}"
    return [row["name"], mine, peer, row["unit"], ratio, share, compiling, trouble(row)]


def in_gib(peaks: Mapping[str, Mapping[str, float] | None]) -> str:
    """The peaks of a training step: what torch gave out, and what the device did."""
    known = {name: peak for name, peak in peaks.items() if peak}
    said = ", ".join(f"{name} {peak['allocated']:.2f} ({peak['device']:.2f})" for name, peak in known.items())
    return f"peak GiB by torch (by the device): {said}" if said else ""


def trouble(row: Row) -> str:
    """What is to be said beside the figures."""
    said = [memory] if (memory := in_gib(row.get("peak", {}))) else []
    said += [f"{name} failed: {what}" for name, what in row["failures"].items()]
    said += [f"{name} {what}" for name, what in row["wrong"].items()]
    said += [f"left to torch: {row['uncompiled']}"] if row["uncompiled"] else []
    said += [f"by {', '.join(row['claims'])}"] if row["claims"] else []
    said += [f"fallbacks: {', '.join(row['fallbacks'])}"] if row["fallbacks"] else []
    return "; ".join([*said, *(f"without {name}: {why}" for name, why in row["left_out"].items())])
