"""Schedules of programs that stay on a GPU, walk rows, and carry sums of their columns in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir.expr import Size, ceildiv, symbols_of
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Address
from weft.lower.machine import Machine
from weft.lower.schedule.capacities import estimated, fitting_capacity, known_product, power_below
from weft.lower.schedule.schedule import Schedule, contiguous_bytes

_SUMMED_ELEMENTS, _SUMMED_WIDTH = 4096, 1024
"""Of a tile whose columns are summed up, and its columns where rows need not be whole: so many are neighbours of all
warps, each thread has its columns of every row, and sums that take few registers."""
_SUMMED_VALUES = 112
"""Of 32 bits, that a thread has beside addresses: its sums, and of its rows each operand and what is made of it."""
_SUMMED_WARPS, _LEAST_SUMMED_WARPS, _LEAST_CHUNK = (1, 2, 4, 8, 16, 32), 4, 2
_REGISTERS, _MOST_REGISTERS, _BESIDE_VALUES = 65536, 128, 40
"""Of a multiprocessor, of a thread that carries sums at most, and what such a thread needs beside its values. All
programs stay at once: one that waited for another to end would double the time."""


@dataclass(frozen=True)
class PersistentRows:
    """How programs walk rows, and carry sums of their columns: a schedule, and what each of its programs has."""

    schedule: Schedule
    along: str | None
    """The run of rows that programs share, so many `rows` at a time, in `turns`; None if there is one row."""
    rows: int
    turns: Size
    warps: int
    """Of a program: side by side along the columns where it `folds`, else along the rows first."""
    folds: bool
    """Whether rows beside each other are added up in every turn: where each thread has all of them."""

    @property
    def parts(self) -> int:
        return self.schedule.parts

    def capacity_of(self, run: Run) -> int | None:
        """How many columns of a run a tile holds; None where a program has one of them."""
        if self.schedule.mode == "rows":
            return run.size if isinstance(run.size, int) else None
        return self.schedule.capacity if run.name == self.schedule.vector else None


def choose_persistent_rows(
    domain: Domain, addresses: Sequence[Address], machine: Machine, *, sums: int, reads: int, whole: bool
) -> PersistentRows:
    """Rows for programs that stay, and sum up columns as they go: `whole` ones where rows are reduced, too.

    They `read` so many tensors of that shape.
    """
    columns = [run for run in domain.column_runs if isinstance(run.size, int)]
    vector = max(reversed(columns), key=lambda run: contiguous_bytes(run, addresses))
    along = max(domain.row_runs, key=lambda run: estimated(run.size), default=None)
    total = known_product(run.size for run in columns) or 1
    width = total if whole else fitting_capacity(vector.size, _SUMMED_WIDTH)
    size = 1 if along is None else along.size
    moving = {vector.name} if along is None else {vector.name, along.name}
    widest = max((a.bytes for a in addresses if a.purpose != "position" and symbols_of(a.expr) >= moving), default=4)
    elements = _SUMMED_ELEMENTS if 2 * width <= _SUMMED_ELEMENTS else 2 * _SUMMED_ELEMENTS
    side = min(power_below(max(1, elements // width)), power_below(estimated(size)))
    folds = 2 * width > _SUMMED_WIDTH
    if folds:
        side, warps, beside = _fitting_sums(width, 16 // widest, side, sums, reads)
    else:
        held = power_below(_SUMMED_VALUES // (sums + reads + 1))
        warps = min(_SUMMED_WARPS[-1], power_below(2 * max(1, side * width // (32 * held)) - 1))
        beside = _programs_beside(warps, held * (sums + reads + 1))
    most = max(1, machine.multiprocessors * beside // (1 if whole else max(1, -(-total // width))))
    turns: Size
    if isinstance(size, int):
        blocks = -(-size // side)
        turns = -(-blocks // most)
        parts = -(-blocks // turns)
    else:
        turns, parts = ceildiv(ceildiv(size, side), most), most
    name = None if along is None else along.name
    capacity = int(vector.size) if whole else width  # type: ignore[arg-type]
    schedule = Schedule("rows" if whole else "lanes", vector.name, capacity, name, side, split=name, parts=parts)
    return PersistentRows(schedule, name, side, turns, warps, folds)


def _fitting_sums(columns: int, chunk: int, rows: int, sums: int, reads: int) -> tuple[int, int, int]:
    """The most rows at a time, the fewest warps side by side along the columns whose threads have room for them, and
    the programs of a multiprocessor: two at least, so that some read while others compute.

    Warps have little beyond the last column, and are not few, as each program has sums to write, if that takes no less
    than a part of a `chunk` at a time.
    """

    def held(warps: int, chunk: int) -> int:
        return -(-columns // (32 * warps * chunk)) * chunk

    def wastes(option: tuple[int, int]) -> bool:
        return 32 * option[0] * held(*option) * 15 > columns * 16

    def cost(option: tuple[int, int]) -> tuple[bool, bool, int, int]:
        warps, chunk = option
        return wastes(option), warps < _LEAST_SUMMED_WARPS, -chunk, warps

    chunks = [each for each in (chunk, chunk // 2, chunk // 4) if each >= min(chunk, _LEAST_CHUNK)]
    every = [(warps, each) for each in chunks for warps in _SUMMED_WARPS]
    while True:
        values = sums + rows * (reads + 1)
        fitting = [option for option in every if held(*option) * values <= _SUMMED_VALUES]
        best = min(fitting, key=cost, default=(_SUMMED_WARPS[-1], chunk))
        beside = _programs_beside(best[0], held(*best) * values)
        if rows == 1 or (fitting and beside > 1 and (not wastes(best) or all(map(wastes, every)))):
            return rows, best[0], beside
        rows //= 2


def _programs_beside(warps: int, values: int) -> int:
    return max(1, _REGISTERS // (32 * warps * min(_MOST_REGISTERS, values + _BESIDE_VALUES)))
