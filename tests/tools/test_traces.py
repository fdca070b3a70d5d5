"""`weft profile` says what ranks did, and makes one trace of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import ParseError
from weft.tools.terminal import UsageError
from weft.tools.traces import figures_of, merged, read_traces


def write(folder: Path, rank: str | None, start: int, name: str = "") -> Path:
    step = {"ph": "X", "pid": 7, "tid": 1}
    flight = {"pid": 7, "tid": 1, "id2": {"local": "0x0"}, "name": "all_reduce", "cat": "in flight"}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "weft"}},
        {**step, "name": "dot", "cat": "library", "ts": 0.0, "dur": 3000.0},
        {**step, "name": "all_reduce", "cat": "collective", "ts": 3000.0, "dur": 10.0},
        {**step, "name": "wait_tensor", "cat": "wait", "ts": 6000.0, "dur": 1000.0},
        {"ph": "b", **flight, "ts": 3000.0},
        {"ph": "e", **flight, "ts": 7000.0},
    ]
    path = folder / f"{name or rank}.json"
    place = {"rank": rank, "host": "here", "wall_clock_ns": start}
    path.write_text(json.dumps({"traceEvents": events, "otherData": place}))
    return path


def test_ranks_are_processes_on_one_clock(tmp_path: Path) -> None:
    second, first = write(tmp_path, "1", 5_000_000), write(tmp_path, "0", 2_000_000)
    traces = read_traces([second, first])
    assert [trace.rank for trace in traces] == [0, 1]
    events = merged(traces)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 on here", "rank 1 on here"]
    starts = {event["pid"]: event["ts"] for event in events if event["name"] == "dot"}
    assert starts == {0: 0.0, 1: 3000.0}  # three milliseconds later
    flights = [(event["pid"], event["id2"]["local"]) for event in events if event["ph"] == "b"]
    assert flights == [(0, "0x0"), (1, "0x0")]
    assert not any("id" in event for event in events)  # which would be one track of all processes


def test_numbers_without_a_process_get_one(tmp_path: Path) -> None:
    path = write(tmp_path, "0", 0)
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event.pop("id2", None):
            event["id"] = 0
    path.write_text(json.dumps(content))
    (trace,) = read_traces([path])
    assert figures_of(trace).collectives == 1
    assert {event["id2"]["local"] for event in merged([trace])["traceEvents"] if event["ph"] in "be"} == {"0"}


def test_what_is_hidden_is_what_nobody_waits_for(tmp_path: Path) -> None:
    (trace,) = read_traces([write(tmp_path, "0", 0)])
    figures = figures_of(trace)
    assert (figures.computed, figures.collectives, figures.in_flight, figures.waited) == (3.0, 1, 4.0, 1.0)
    assert figures.hidden == 0.75


def test_traces_without_ranks_are_numbered(tmp_path: Path) -> None:
    paths = [write(tmp_path, None, 0, "a"), write(tmp_path, None, 0, "b")]
    assert [trace.rank for trace in read_traces(paths)] == [0, 1]


def test_bad_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both of rank 0"):
        read_traces([write(tmp_path, "0", 0), write(tmp_path, "0", 1, "other")])
    with pytest.raises(UsageError, match="cannot be read"):
        read_traces([tmp_path / "missing.json"])
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ParseError, match=r"no trace of weft\.profile"):
        read_traces([tmp_path / "list.json"])
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(ParseError, match="is no trace"):
        read_traces([tmp_path / "text.json"])
