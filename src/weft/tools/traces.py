"""`weft profile`: traces that ranks wrote, rank by rank: what they computed, sent and waited for; and as one trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from weft.errors import ParseError
from weft.tools.terminal import Terminal, UsageError, check_file, counted


@dataclass(frozen=True)
class RankTrace:
    """The trace of one process; its events' times are microseconds from `start`."""

    path: Path
    rank: int
    host: str
    start: int
    """By the wall clock, in nanoseconds."""
    events: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class RankFigures:
    """What a rank did, in milliseconds: collectives are hidden while they are under way and nobody waits for them."""

    rank: int
    host: str
    computed: float
    collectives: int
    in_flight: float
    waited: float

    @property
    def hidden(self) -> float:
        return max(self.in_flight - self.waited, 0) / self.in_flight if self.in_flight else 1.0


def report(terminal: Terminal, paths: Sequence[Path], merge: Path | None) -> None:
    """Print a line a rank; write one trace of all of them to `merge`."""
    if merge is not None:
        check_file(merge, "--merge")
    traces = read_traces(paths)
    figures = [figures_of(trace) for trace in traces]
    table = Table("rank", "host", "steps ms", "collectives", "in flight ms", "waited ms", "hidden")
    for each in figures:
        times = (f"{each.computed:.3f}", str(each.collectives), f"{each.in_flight:.3f}", f"{each.waited:.3f}")
        table.add_row(str(each.rank), each.host, *times, f"{each.hidden:.0%}")
    terminal.show(table)
    if merge is not None:
        merge.write_text(json.dumps(merged(traces)))
        terminal.show(f"{counted(len(traces), 'trace')} in {merge}: ui.perfetto.dev opens it")
    ranks = [{**asdict(each), "hidden": each.hidden} for each in figures]
    terminal.finish({"ok": True, "ranks": ranks, "merged": None if merge is None else str(merge)})


def read_traces(paths: Sequence[Path]) -> list[RankTrace]:
    """The traces by rank; where they do not say whose they are, in the order in which they are given."""
    traces = [_read(path, number) for number, path in enumerate(paths)]
    seen: dict[int, Path] = {}
    for trace in traces:
        if trace.rank in seen:
            raise UsageError(
                f"{trace.path} and {seen[trace.rank]} are both of rank {trace.rank}",
                hint="give the traces of one run, each once",
            )
        seen[trace.rank] = trace.path
    return sorted(traces, key=lambda trace: trace.rank)


def _read(path: Path, number: int) -> RankTrace:
    try:
        content: Any = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="give traces of weft.profile") from error
    except ValueError as error:
        raise ParseError(f"{path} is no trace: {error}", hint="weft.profile(path) writes one") from error
    read = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    events, place = read.get("traceEvents"), read.get("otherData")
    if not isinstance(events, list) or not isinstance(place, dict):
        raise ParseError(f"{path} is no trace of weft.profile", hint="it has traceEvents, and a clock in otherData")
    return _described(path, number, cast("list[dict[str, Any]]", events), cast("dict[str, Any]", place))


def _described(path: Path, number: int, events: list[dict[str, Any]], place: dict[str, Any]) -> RankTrace:
    start, rank = place.get("wall_clock_ns"), place.get("rank")
    if not isinstance(start, int):
        raise ParseError(f"{path} does not say when it began", hint="weft.profile writes wall_clock_ns to otherData")
    if rank is not None and not str(rank).isdigit():
        raise ParseError(f"{path} is of rank {rank}, which is no number")
    return RankTrace(path, number if rank is None else int(rank), str(place.get("host", "")), start, tuple(events))


def merged(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """One trace, each rank a process of its own; times are from the first rank's start, as the hosts' clocks say."""
    first = min(trace.start for trace in traces)
    events: list[dict[str, Any]] = []
    for trace in traces:
        shift = (trace.start - first) / 1e3
        named = {"ph": "M", "pid": trace.rank, "tid": 0}
        events.append({**named, "name": "process_name", "args": {"name": f"rank {trace.rank} on {trace.host}"}})
        events.append({**named, "name": "process_sort_index", "args": {"sort_index": trace.rank}})
        for event in trace.events:
            if event.get("ph") == "M" and str(event.get("name", "")).startswith("process_"):
                continue
            moved = {**event, "pid": trace.rank}
            if "ts" in event:
                moved["ts"] = event["ts"] + shift
            if "id" in event:  # of one process, and of one it stays
                moved["id2"] = {"local": str(moved.pop("id"))}
            events.append(moved)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"ranks": len(traces)}}


def figures_of(trace: RankTrace) -> RankFigures:
    begun = {_number(event): event["ts"] for event in trace.events if event.get("ph") == "b"}
    ended = {_number(event): event["ts"] for event in trace.events if event.get("ph") == "e"}
    steps = [event for event in trace.events if event.get("ph") == "X"]
    own = [event["dur"] for event in steps if event.get("cat") not in ("call", "compile", "collective", "wait")]
    return RankFigures(
        trace.rank,
        trace.host,
        sum(own) / 1e3,
        len(begun),
        sum(ended[key] - start for key, start in begun.items() if key in ended) / 1e3,
        sum(event["dur"] for event in steps if event.get("cat") == "wait") / 1e3,
    )


def _number(event: dict[str, Any]) -> str:
    """Which of a process's spans an event begins or ends."""
    return str(event["id"] if "id" in event else event["id2"]["local"])
