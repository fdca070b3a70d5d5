"""The instruction set of streaming machines: opcodes, what ALUs compute, and which queue belongs to which unit.

With the machine's description this is all that the compiler, the verifier and the simulator have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from weft.spatial.machine import StreamingMachine

EAST, WEST = 0, 1
"""Directions of streams: to higher and to lower positions."""
NONE = -1
"""No operand, or no result on a stream."""
CHAINED = 1000
"""An operand of `CHAINED + n` is what ALU n has computed, handed to its neighbour without a stream."""


class Opcode(IntEnum):
    """One instruction of the queues. The names of the paper stand beside those that differ."""

    READ = 0
    WRITE = 1
    LOAD_WEIGHTS = 2  # LW
    INSTALL_WEIGHTS = 3  # IW
    MULTIPLY = 4  # ABC
    ACCUMULATE = 5  # ACC
    ALU = 6
    SEND = 7
    RECEIVE = 8


ADDS, EMITS = 1, 2
"""Bits of what `ACCUMULATE` does: add to the row that is there; put the row on a stream."""


@dataclass(frozen=True)
class LoadDetail:
    """What a load of weights does with the vectors on its streams, packed in `detail`; 0 is a load of whole rows.

    It takes `streams` of them, as rows of the tile or, transposed, as columns; of each the lanes of some tiles of the
    machine (superlanes), and the others count as zero. What is not loaded is zero too.
    """

    streams: int
    columns: bool
    first_tile: int
    tiles: int

    @property
    def packed(self) -> int:
        return self.streams | self.columns << 8 | self.first_tile << 9 | self.tiles << 17

    @property
    def span(self) -> tuple[int, int]:
        """The first tile of the machine whose lanes are taken, and the one after the last."""
        return self.first_tile, self.first_tile + self.tiles

    @property
    def shape(self) -> int:
        """What all loads of one tile have in common: everything but the number of streams."""
        return self.packed & ~0xFF


COLUMNS = 1 << 8
"""The bit of a load's `detail` that makes it take columns."""


def load_detail(detail: int, machine: StreamingMachine) -> LoadDetail:
    """What a load does."""
    if detail == 0:
        return LoadDetail(machine.matrix.load_streams, False, 0, machine.lanes.tiles)
    return LoadDetail(detail & 0xFF, bool(detail & COLUMNS), detail >> 9 & 0xFF, detail >> 17 & 0xFF)


def load_widths(detail: np.ndarray, machine: StreamingMachine) -> np.ndarray:
    """How many streams loads take."""
    return np.where(detail == 0, machine.matrix.load_streams, detail & 0xFF)


class Function(IntEnum):
    """What an ALU computes in every lane."""

    I32_TO_F32 = 0
    I8_TO_F32 = 1
    F32_TO_I8 = 2
    MUL_F32 = 3
    ADD_F32 = 4
    RELU_F32 = 5
    MAX_I8 = 6
    COPY_I32 = 7
    COPY_I8 = 8
    SQUARE_F32 = 9
    EXP_F32 = 10
    TANH_F32 = 11
    RSQRT_F32 = 12
    ADD_I32 = 13


def to_int8(values: np.ndarray) -> np.ndarray:
    """Floats rounded to the nearest integer of 8 bits: halves to even, what is beyond to the last one."""
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def _to_float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


def _relu(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, np.float32(0))


def _rsqrt(values: np.ndarray) -> np.ndarray:
    return np.reciprocal(np.sqrt(values))


@dataclass(frozen=True)
class Meaning:
    """The types of a function's operands and result, and what it computes."""

    operands: tuple[type[np.generic], ...]
    result: type[np.generic]
    compute: Callable[..., np.ndarray]


MEANINGS: dict[Function, Meaning] = {
    Function.I32_TO_F32: Meaning((np.int32,), np.float32, _to_float32),
    Function.I8_TO_F32: Meaning((np.int8,), np.float32, _to_float32),
    Function.F32_TO_I8: Meaning((np.float32,), np.int8, to_int8),
    Function.MUL_F32: Meaning((np.float32, np.float32), np.float32, np.multiply),
    Function.ADD_F32: Meaning((np.float32, np.float32), np.float32, np.add),
    Function.RELU_F32: Meaning((np.float32,), np.float32, _relu),
    Function.MAX_I8: Meaning((np.int8, np.int8), np.int8, np.maximum),
    Function.COPY_I32: Meaning((np.int32,), np.int32, np.copy),
    Function.COPY_I8: Meaning((np.int8,), np.int8, np.copy),
    Function.SQUARE_F32: Meaning((np.float32,), np.float32, np.square),
    Function.EXP_F32: Meaning((np.float32,), np.float32, np.exp),
    Function.TANH_F32: Meaning((np.float32,), np.float32, np.tanh),
    Function.RSQRT_F32: Meaning((np.float32,), np.float32, _rsqrt),
    Function.ADD_I32: Meaning((np.int32, np.int32), np.int32, np.add),
}


def operand_bytes(function: int, operand: int) -> int:
    """How many adjacent streams an operand of an ALU takes; 0 where it has no such operand."""
    operands = MEANINGS[Function(function)].operands
    return np.dtype(operands[operand]).itemsize if operand < len(operands) else 0


def result_bytes(function: int) -> int:
    """How many adjacent streams the result of an ALU takes."""
    return np.dtype(MEANINGS[Function(function)].result).itemsize


@dataclass(frozen=True)
class Units:
    """Where the units of a machine are, and the numbers of their queues.

    Memory slices come first, west and then east, each half counted outwards from the middle; then ALUs; then for each
    plane a queue for weights, one for activations and one for accumulators; then what shifts and what sends.
    """

    machine: StreamingMachine

    def memory(self, half: int, number: int) -> int:
        """The queue of a slice: half 0 is west, and number 0 next to the middle."""
        return half * self.machine.memory.slices_per_half + number

    def alu(self, number: int) -> int:
        return self.machine.slices + number

    def plane(self, number: int, part: int) -> int:
        """A queue of a plane: part 0 loads weights, 1 multiplies, 2 accumulates."""
        return self.machine.slices + self.machine.alus + 3 * number + part

    @property
    def planes_end(self) -> int:
        return self.plane(self.machine.matrix.planes, 0)

    def link(self, number: int) -> int:
        """The queue of a link to another chip; the first half of them is at the west edge."""
        return self.planes_end + 2 * self.machine.shift.queues_per_half + number

    @property
    def end(self) -> int:
        return self.link(self.machine.links.count)

    def half_of_plane(self, plane: int) -> int:
        return plane // (self.machine.matrix.planes // 2)

    def position(self, queue: int) -> int:
        """The stream register that a unit reads and writes."""
        machine = self.machine
        if queue < machine.slices:
            half, number = divmod(queue, machine.memory.slices_per_half)
            return machine.hop(number) * (1 if half else -1)
        if queue < machine.slices + machine.alus:
            return 0
        if queue >= self.planes_end:
            number, shifts = queue - self.link(0), machine.shift.queues_per_half
            east = 2 * number >= machine.links.count if number >= 0 else queue - self.planes_end >= shifts
            return machine.edge if east else -machine.edge
        plane = (queue - machine.slices - machine.alus) // 3
        return machine.edge if self.half_of_plane(plane) else -machine.edge

    def name(self, queue: int) -> str:
        """A unit as messages name it."""
        machine = self.machine
        if queue < machine.slices:
            half, number = divmod(queue, machine.memory.slices_per_half)
            return f"MEM {'east' if half else 'west'} {number}"
        if queue < machine.slices + machine.alus:
            return f"VXM ALU {queue - machine.slices}"
        if queue < self.planes_end:
            plane, part = divmod(queue - machine.slices - machine.alus, 3)
            return f"MXM plane {plane} {('weights', 'activations', 'accumulators')[part]}"
        if self.link(0) <= queue < self.end:
            return f"C2C link {queue - self.link(0)}"
        return f"queue {queue}"
