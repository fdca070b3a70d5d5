"""Schedules of programs that stay on a GPU, walk rows, and carry sums of their columns in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.ir.expr import Size, ceildiv, product, symbols_of
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
_PARTITIONS, _REGISTER_UNIT = 4, 8
"""A multiprocessor's parts, each with its share of warps and registers, and in what units a thread gets registers."""
_BROUGHT_VALUES, _BESIDE_BROUGHT, _OF_A_ROW = 84, 24, 8
"""Where TMA brings rows: values that a thread has, and what it needs beside them, and for each row."""
_REDUCING_WARPS, _WARPS = 16, 8
"""Of a multiprocessor, that keep up with TMA in any case: where they reduce rows, and where they do not."""
_TURN_BYTES, _TURN_ELEMENTS, _BESIDE_ELEMENTS = 32 << 10, 16, 8
"""What memory brings while programs reduce rows of which each thread has so many elements; and what a turn takes
beside, where warps wait for each other, as elements. Where programs are given as much at a time, fewer do: they write
fewer sums, and memory has fewer places at a time."""
_THREADS, _FEW_VALUES = 1024, 52
"""Of a multiprocessor, so many that one's wait for memory is another's time to compute; and the values of each."""
_IN_FLIGHT = 40 << 10
"""Bytes that a multiprocessor has under way at full speed: a microsecond of its share of memory's. Where threads load
so many by themselves and need not wait for each other, there is nothing to gain."""
_LEAST_BESIDE = 2
"""Programs of a multiprocessor: some read while others compute."""
_LEAST_TURNS = 3
"""Of a program that has rows brought: in one or two, bringing them ahead takes as long as it saves."""
_MOST_COLUMNS = 32
"""Of a row, that a thread has: as many as a pipeline lets it read."""
_SHARED, _SHARED_BESIDE, _STAGES, _BROUGHT_UNIT = 232448, 12288, 2, 16
"""Bytes that a multiprocessor's programs have for what is brought, what each needs for sums and barriers, the stages of
each at least, and what TMA moves multiples of."""


@dataclass(frozen=True)
class PersistentRows:
    """How programs walk rows, and carry sums of their columns: a schedule, and what each of its programs has."""

    schedule: Schedule
    along: str | None
    """The run of rows that programs share, so many `rows` at a time; None if there is one row."""
    rows: int
    warps: int
    """Of a program: side by side along the columns where it `folds`, else along the rows first."""
    folds: bool
    """Whether rows beside each other are added up in every turn: where each thread has all of them."""
    prefetched: bool = False
    """Whether the next rows are to be brought while programs compute."""
    rereads: bool = False
    """Whether threads read what is brought of a row again behind its reductions: they have no room for it meanwhile."""
    row_warps: int = 1
    """How many of a program's warps stand one below the other, where those side by side have all columns."""

    @property
    def parts(self) -> int:
        return self.schedule.parts

    def turns_of(self, program: Size, rows: Size) -> tuple[Size, int, Size]:
        """The first row of a program, how many rows it comes further by for each that it has, and how many it has.

        Programs take rows in turn: memory gives shares that lie one after the other so unevenly that some programs end
        when two thirds of the time are over.
        """
        blocks = ceildiv(rows, self.rows)
        return program * self.rows, self.parts, ceildiv(blocks - program, self.parts) * self.rows

    def blocks_of(self, run: Run) -> Size:
        """How many times a run of rows has what is done at a time."""
        return ceildiv(run.size, self.rows) if run.name == self.along else run.size

    def numbers_of(self, program: Size, runs: Sequence[Run], turn: Size) -> tuple[Size, Size]:
        """Which of what several runs have together a program does in its turn, and how many turns it has."""
        return program + turn * self.parts, ceildiv(product(map(self.blocks_of, runs)) - program, self.parts)

    def capacity_of(self, run: Run) -> int | None:
        """How many columns of a run a tile holds; None where a program has one of them."""
        if self.schedule.mode == "rows":
            return run.size if isinstance(run.size, int) else None
        return self.schedule.capacity if run.name == self.schedule.vector else None


@dataclass(frozen=True)
class Operands:
    """What a kernel reads: the bytes of an element of each tensor of its shape, and of each of a row's shape."""

    full: tuple[int, ...]
    vectors: tuple[int, ...]
    dense: bool = True
    """Whether the rows of the former lie in memory one after the other."""


@dataclass(frozen=True)
class _Brought:
    """What TMA brings to a program: bytes of every row, and once; nothing where threads load by themselves."""

    of_a_row: int = 0
    once: int = 0
    reduces: bool = False
    """Whether rows are reduced, for which the warps of a program wait for each other."""
    again: bool = False
    """Whether threads read a row again behind its reductions, of which they hold nothing meanwhile."""

    @property
    def most_values(self) -> int:
        """That a thread has beside addresses."""
        return _BROUGHT_VALUES if self.of_a_row else _SUMMED_VALUES

    def values(self, sums: int, reads: int, rows: int) -> int:
        """What a thread has of every column: its sums, each operand, and what is made of these as they come; where it
        reads operands again, its sums."""
        if self.again:
            return sums
        return sums + rows * (reads if self.of_a_row else reads + 1)

    def programs(self, warps: int, columns: int, values: int, rows: int) -> int:
        """How many programs, whose threads have so many columns and values, a multiprocessor has room for at once, and
        needs; 0 if what is brought for one does not fit."""
        if not self.of_a_row:
            return max(1, _REGISTERS // (32 * warps * min(_MOST_REGISTERS, values + _BESIDE_VALUES)))
        if warps == _SUMMED_WARPS[-1]:  # of a block, which has none left for the one that brings rows
            return 0
        wanted = min(_MOST_REGISTERS, values + _OF_A_ROW * rows + _BESIDE_BROUGHT)
        each = -(-wanted // _REGISTER_UNIT) * _REGISTER_UNIT
        by_registers = _REGISTERS // _PARTITIONS // (32 * each) * _PARTITIONS // (warps + 1)
        by_shared = _SHARED // (self.once + _SHARED_BESIDE + _STAGES * rows * self.of_a_row)
        return min(by_registers, by_shared, self._needed(warps, columns, rows))

    def _needed(self, warps: int, columns: int, rows: int) -> int:
        """The fewest programs that keep up with memory."""
        if not self.reduces:
            return max(1, _WARPS // warps)
        meanwhile = _TURN_BYTES * (columns * rows + _BESIDE_ELEMENTS) // (_TURN_ELEMENTS + _BESIDE_ELEMENTS)
        return min(max(1, _REDUCING_WARPS // warps), -(-meanwhile // (rows * self.of_a_row)))

    def keeps_up(self, programs: int, warps: int, columns: int, rows: int) -> bool:
        """Whether there are as many programs as are needed."""
        return programs >= self._needed(warps, columns, rows)


@dataclass(frozen=True)
class _Turn:
    """What a program does at a time: so many rows, by so many warps, and the programs of a multiprocessor."""

    rows: int
    warps: int
    beside: int
    row_warps: int = 1


def choose_persistent_rows(
    domain: Domain, addresses: Sequence[Address], machine: Machine, *, sums: int, operands: Operands, whole: bool
) -> PersistentRows:
    """Rows for programs that stay, and sum up columns as they go: `whole` ones where rows are reduced, too."""
    reads = max(1, len(operands.full))
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
    blocks = 1 if whole else max(1, -(-total // width))
    others = known_product(run.size for run in domain.row_runs if run is not along)

    def programs(turn: _Turn) -> int:
        most = max(1, machine.multiprocessors * turn.beside // blocks)
        return min(-(-size // turn.rows) * others, most) if isinstance(size, int) and others else most

    brought = None
    if folds:
        turn = _fitting_sums(width, 16 // widest, side, sums, reads, _Brought())
        in_flight = turn.beside * turn.rows * width * sum(operands.full)
        if machine.capabilities.bulk_copies and (whole or in_flight < _IN_FLIGHT):
            brought = _brought(domain, operands, width, whole=whole)
        if brought is not None:
            ahead = _fitting_sums(width, 16 // widest, side, sums, reads, brought)
            if whole and not ahead.beside:
                brought = replace(brought, again=True)
                ahead = _fitting_sums(width, 16 // widest, side, sums, reads, brought)
            long = estimated(size) > (_LEAST_TURNS - 1) * ahead.rows * programs(ahead)
            turn, brought = (ahead, brought) if long and ahead.beside else (turn, None)
        if brought is not None and whole and not brought.again:
            turn = _in_pairs(turn, width, brought.values(sums, reads, 1), brought)
        if brought is None and not whole and reads > 1:
            turn = _with_threads(turn, width, sums, reads + 1)
    else:
        turn = _beside_each_other(side, width, sums + reads + 1, light=not whole and reads > 1)
    name, parts = None if along is None else along.name, programs(turn)
    capacity = int(vector.size) if whole else width  # type: ignore[arg-type]
    schedule = Schedule("rows" if whole else "lanes", vector.name, capacity, name, turn.rows, split=name, parts=parts)
    rereads = brought is not None and brought.again
    folds = folds and turn.row_warps == 1
    return PersistentRows(schedule, name, turn.rows, turn.warps, folds, brought is not None, rereads, turn.row_warps)


def _brought(domain: Domain, operands: Operands, width: int, *, whole: bool) -> _Brought | None:
    """What TMA can bring of rows so wide, if it is known how many there are: whole ones, or parts of the same size.

    Of short rows, which stand beside each other in a program's warps, none come: where their number is no multiple of
    what a program takes, each is a copy by itself, which takes as long to ask for as memory takes for a kilobyte.
    """
    (run, *others), columns = domain.row_runs or [Run(())], domain.column_runs
    known = not others and isinstance(run.size, int) and run.size > 1 and operands.full and operands.dense
    parts = whole or (len(columns) == 1 and isinstance(columns[0].size, int) and columns[0].size % width == 0)
    if not known or not parts or any(width * size % _BROUGHT_UNIT for size in operands.full):
        return None
    return _Brought(width * sum(operands.full), width * sum(operands.vectors), whole)


def _with_threads(turn: _Turn, columns: int, sums: int, values: int) -> _Turn:
    """Twice the warps for the same rows where a multiprocessor has as many threads, and each has columns that it moves
    at once: of programs that load and compute in turn, some must compute while others wait for memory.

    Where columns are not enough for all of them side by side, each row has warps by itself, and sums of its own.
    """
    warps = 2 * turn.warps
    if turn.beside * 32 * warps > _THREADS:
        return turn
    for row_warps, rows in ((1, turn.rows), (turn.rows, 1)):
        each, rest = divmod(columns * row_warps, 32 * warps)
        whole = rest == 0 and each % _LEAST_CHUNK == 0 and row_warps <= warps
        if whole and each * ((sums if row_warps == 1 else sums * rows) + rows * values) <= _FEW_VALUES:
            return replace(turn, warps=warps, row_warps=row_warps)
    return turn


def _in_pairs(turn: _Turn, columns: int, values: int, brought: _Brought) -> _Turn:
    """Two programs of few warps as one, each of whose rows has warps by itself, while as many are left that some read
    while others compute: half of the sums are written and added up, and threads move more at once."""
    while turn.beside >= 2 * _LEAST_BESIDE and 2 * turn.warps <= _WARPS:
        rows, warps = 2 * turn.rows, 2 * turn.warps
        each, rest = divmod(columns * rows, 32 * warps)
        beside = brought.programs(warps, each, each * values, 1) if rows <= warps else 0
        if rest or each % _LEAST_CHUNK or each * values > brought.most_values or 2 * beside < turn.beside:
            return turn
        turn = _Turn(rows, warps, turn.beside // 2, rows)
    return turn


def _beside_each_other(rows: int, columns: int, values: int, *, light: bool) -> _Turn:
    """So many short rows, as many at most, in tiles of which each thread has `values` for every element.

    Of programs that load and compute in turn, and reduce no rows, threads have few (`light`): see `_with_threads`.
    """
    most = _FEW_VALUES if light else _SUMMED_VALUES
    held = power_below(most // values)
    elements = rows * power_below(2 * columns - 1)
    warps = min(_SUMMED_WARPS[-1], power_below(2 * max(1, elements // (32 * held)) - 1))
    if not light:
        return _Turn(rows, warps, _Brought().programs(warps, held, held * values, rows))
    while warps > _WARPS and rows > 1:
        rows, warps = rows // 2, warps // 2
    return _Turn(rows, warps, max(1, _THREADS // (32 * warps)))


def _fitting_sums(columns: int, chunk: int, rows: int, sums: int, reads: int, brought: _Brought) -> _Turn:
    """The most rows at a time, the fewest warps side by side along the columns whose threads have room for them, and
    the programs of a multiprocessor: two at least, so that some read while others compute.

    Warps have little beyond the last column, and are not few, as each program has sums to write, if that takes no less
    than a part of a `chunk` at a time.
    """

    def held(warps: int, chunk: int) -> int:
        return -(-columns // (32 * warps * chunk)) * chunk

    def programs(option: tuple[int, int]) -> int:
        return brought.programs(option[0], held(*option), held(*option) * values, rows)

    def lags(option: tuple[int, int]) -> bool:
        return brought.of_a_row > 0 and not brought.keeps_up(programs(option), option[0], held(*option), rows)

    def wastes(option: tuple[int, int]) -> bool:
        return 32 * option[0] * held(*option) * 15 > columns * 16

    def cost(option: tuple[int, int]) -> tuple[bool, bool, bool, int, int]:
        warps, chunk = option
        return wastes(option), lags(option), warps < _LEAST_SUMMED_WARPS, -chunk, warps

    chunks = [each for each in (chunk, chunk // 2, chunk // 4) if each >= min(chunk, _LEAST_CHUNK)]
    every = [(warps, each) for each in chunks for warps in _SUMMED_WARPS]
    while True:
        values = brought.values(sums, reads, rows)
        fitting = [
            each for each in every if held(*each) <= _MOST_COLUMNS and held(*each) * values <= brought.most_values
        ]
        best = min(fitting, key=cost, default=(_SUMMED_WARPS[-1], chunk))
        beside = programs(best)
        enough = beside > 1 and not lags(best)
        if rows == 1 or (fitting and enough and (not wastes(best) or all(map(wastes, every)))):
            return _Turn(rows, best[0], beside)
        rows //= 2
