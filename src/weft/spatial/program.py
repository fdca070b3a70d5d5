"""A schedule as arrays: for each queue which instruction issues in which cycle, on which streams and addresses.

This is the only thing that the verifier and the simulator read. An entry is a group: an instruction and its
repetitions, `period` cycles apart, with addresses and tags that move by a step each time. A tag names a vector of the
program: an instruction says which it takes (`want0`, `want1`) and which it makes (`tag`), so that a wrong vector at the
right place is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.spatial.isa import Opcode, Units
from weft.spatial.machine import StreamingMachine

INSTRUCTION = np.dtype(
    [
        ("queue", np.int32),
        ("cycle", np.int32),
        ("count", np.int32),
        ("period", np.int32),
        ("opcode", np.int32),
        ("function", np.int32),
        ("source0", np.int32),
        ("source1", np.int32),
        ("result", np.int32),
        ("address", np.int32),
        ("step", np.int32),
        ("detail", np.int32),
        ("tag", np.int32),
        ("tag_step", np.int32),
        ("want0", np.int32),
        ("want0_step", np.int32),
        ("want1", np.int32),
        ("want1_step", np.int32),
        ("origin", np.int32),
    ]
)
"""`detail` is an accumulator's bits, and of a write the byte that it keeps plus 16 for each of the vector's. `origin`
is a line of the program's table of graph ops."""

MOVING = {"cycle": "period", "address": "step", "tag": "tag_step", "want0": "want0_step", "want1": "want1_step"}
"""What repetitions change, and by which field."""


@dataclass(frozen=True)
class Port:
    """Where an argument or a result of the program lies in memory.

    `index` says, for each vector, which element of the flat array each lane holds (-1: none, the lane holds `fill`). A
    cell is a word of memory: byte `bytes` of vector `vectors`, with its tag.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    index: np.ndarray
    fill: int
    slices: np.ndarray
    addresses: np.ndarray
    vectors: np.ndarray
    bytes: np.ndarray
    tags: np.ndarray


@dataclass(frozen=True)
class Image:
    """What memory holds before the program starts: weights and constants, a row of bytes for each cell."""

    slices: np.ndarray
    addresses: np.ndarray
    tags: np.ndarray
    data: np.ndarray


@dataclass(frozen=True)
class Text:
    """The instructions of a queue as its words: [kind, first, second], where kind is one of `ISSUE`, `NOP`, `REPEAT`.

    ISSUE has the number of a group; NOP n waits n cycles; REPEAT n, d issues the last instruction n times more, d
    cycles apart. Memory slices have one text for reads and one for writes, links one for sends and one for receives:
    `port`.
    """

    queue: int
    port: int
    words: np.ndarray


ISSUE, NOP, REPEAT = 0, 1, 2


@dataclass(frozen=True)
class Program:
    """A schedule, the memory it starts from, and what was predicted of it."""

    machine: StreamingMachine
    instructions: np.ndarray
    texts: Sequence[Text]
    image: Image
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    origins: Sequence[str]
    cycles: int
    bounds: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def units(self) -> Units:
        return Units(self.machine)


def expanded(instructions: np.ndarray) -> dict[str, np.ndarray]:
    """Every issue of every group, as columns; `group` is the entry, and `number` which of its repetitions."""
    counts = instructions["count"].astype(np.int64)
    group = np.repeat(np.arange(len(instructions)), counts)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    number = np.arange(len(group)) - starts[group]
    columns: dict[str, np.ndarray] = {"group": group, "number": number}
    for name in ("queue", "opcode", "function", "source0", "source1", "result", "detail", "origin"):
        columns[name] = instructions[name][group]
    for name, step in MOVING.items():
        columns[name] = instructions[name][group].astype(np.int64) + number * instructions[step][group]
    return columns


def port_of(opcode: np.ndarray) -> np.ndarray:
    """Reads and writes of a slice issue side by side, and so do sends and receives of a link."""
    return np.isin(opcode, (Opcode.WRITE, Opcode.RECEIVE))


def described(program: Program, row: Any, cycle: int) -> str:
    """An issue of a group as messages name it: unit, cycle, opcode, graph op."""
    origin = program.origins[int(row["origin"])] if 0 <= row["origin"] < len(program.origins) else "no op"
    return f"{program.units.name(int(row['queue']))}, cycle {cycle}: {Opcode(int(row['opcode'])).name} of {origin}"
