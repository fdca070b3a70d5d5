"""Collects issues as arrays, and turns them into groups and into the words of the queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.spatial.isa import NONE, Opcode
from weft.spatial.program import INSTRUCTION, ISSUE, MOVING, NOP, REPEAT, Text, port_of

_FIXED = ("queue", "opcode", "function", "source0", "source1", "result", "detail", "origin")
_COLUMNS = (*_FIXED, *MOVING)
_DEFAULTS = {"function": 0, "source0": NONE, "source1": NONE, "result": NONE, "detail": 0, "origin": 0}


@dataclass
class Emitter:
    """Issues of a layer. Cycles count from the layer's start until it is known."""

    parts: list[tuple[int, dict[str, Any]]] = field(default_factory=list[tuple[int, dict[str, Any]]])
    """How many issues, and their columns: arrays, or numbers that are the same for all."""

    def emit(self, opcode: Opcode, queue: Any, cycle: Any, **columns: Any) -> None:
        """Add issues; what is one number is the same for all."""
        given = {"opcode": int(opcode), "queue": queue, "cycle": cycle, **_DEFAULTS, **columns}
        arrays: dict[str, np.ndarray] = {name: each for name, each in given.items() if isinstance(each, np.ndarray)}
        flat: dict[str, Any] = {**given, **{name: each.reshape(-1) for name, each in arrays.items()}}
        length = max((each.size for each in arrays.values()), default=1)
        self.parts.append((length, flat))

    def columns(self) -> dict[str, np.ndarray]:
        ends = np.cumsum([length for length, _ in self.parts]).tolist()
        found = {name: np.zeros(ends[-1] if ends else 0, np.int64) for name in _COLUMNS}
        for (length, part), end in zip(self.parts, ends, strict=True):
            for name, values in part.items():
                found[name][end - length : end] = values
        return found


def groups_of(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Issues as groups: as many of a queue in a row as differ by the same steps."""
    port = port_of(columns["opcode"])
    order = np.lexsort((columns["cycle"], port, columns["queue"]))
    rows = {name: values[order] for name, values in columns.items()}
    count = len(order)
    if not count:
        return np.zeros(0, INSTRUCTION)
    fixed = np.stack([rows[name] for name in _FIXED])
    moving = np.stack([rows[name] for name in MOVING])
    like = np.all(fixed[:, 1:] == fixed[:, :-1], axis=0)
    steps = moving[:, 1:] - moving[:, :-1]
    # A run goes on where the step into an issue equals the one before it.
    goes_on = np.zeros(count, bool)
    goes_on[2:] = like[1:] & like[:-1] & np.all(steps[:, 1:] == steps[:, :-1], axis=0)
    starts: list[int] = []
    at = 0
    # Where a run cannot go on, the issue that breaks it starts the next one, which takes its own first step freely.
    breaks = np.flatnonzero(~goes_on)
    following = np.searchsorted(breaks, np.arange(count + 1))
    limits = np.append(breaks, count)
    joined = np.append(like, False)
    while at < count:
        starts.append(at)
        if not joined[at]:
            at += 1
            continue
        end = int(limits[following[at + 2]]) if at + 2 <= count - 1 else count
        at = end
    first = np.array(starts)
    made = np.zeros(len(first), INSTRUCTION)
    for name in _COLUMNS:
        made[name] = rows[name][first]
    made["count"] = np.diff(np.append(first, count))
    longer = made["count"] > 1
    made["period"] = 1
    for number, step in enumerate(MOVING.values()):
        made[step][longer] = steps[number][first[longer]]
    return made


def texts_of(instructions: np.ndarray) -> list[Text]:
    """The words of each queue; the groups of a queue do not overlap."""
    port = port_of(instructions["opcode"]).astype(int)
    order = np.lexsort((instructions["cycle"], port, instructions["queue"]))
    keys = instructions["queue"][order] * 2 + port[order]
    texts: list[Text] = []
    for key in np.unique(keys).tolist():
        own = order[keys == key]
        rows = instructions[own]
        ends = rows["cycle"] + (rows["count"] - 1) * rows["period"] + 1
        gaps = rows["cycle"] - np.concatenate([[0], ends[:-1]])
        words = np.zeros((len(own), 3, 3), np.int64)
        words[:, 0] = np.stack([np.full(len(own), NOP), gaps, np.zeros_like(gaps)], axis=1)
        words[:, 1] = np.stack([np.full(len(own), ISSUE), own, np.zeros_like(own)], axis=1)
        words[:, 2] = np.stack([np.full(len(own), REPEAT), rows["count"] - 1, rows["period"]], axis=1)
        kept = np.stack([gaps > 0, np.ones(len(own), bool), rows["count"] > 1], axis=1)
        texts.append(Text(key // 2, key % 2, words[kept]))
    return texts
