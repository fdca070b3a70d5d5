"""The schedules of a GPU: a program is a block of threads, and its tiles lie spread over the threads' registers.

The rules, from the first that fits:

- no columns: a tile of neighbours; of two axes where the inner run is short, or where some are neighbours along one run
  and some along another (a transpose: 64 x 64, turned on its way);
- a window of few columns: these one after the other, for a tile of results;
- long columns that are needed once: blocks in a loop, brought ahead; or that are needed again, where TMA
  brings them to memory that holds all of them;
- columns that fit the registers: whole rows, several of them where they are short;
- longer ones: blocks in a loop that carries a tile of partial results, along the columns if they are neighbours in
  memory, else with so many rows beside each other as a memory access brings;
- such with too few rows to fill the machine: split over programs, whose results a second kernel combines.

Capacities are powers of two, or all of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weft.ir.expr import Size, ceildiv, coefficient_of, product, split_multiple, symbols_of
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Address
from weft.lower.machine import Machine
from weft.lower.schedule.schedule import MOST_TAPS, Schedule, contiguous_bytes

_TILE_BYTES = 4096
"""Of the widest operand of elementwise work, for a program: 32 bytes for each of 128 threads."""
_LEAST_ELEMENTS = 256
_MANY_READS = 4
_SIDE = 64
"""A side of a tile that is turned: 128 bytes of 16-bit elements."""
_ACCESS = 32
"""Neighbours that a memory access should bring at least."""
_SECTOR = 8
"""Neighbours of 32 bits that a memory access brings in any case."""
_HELD_ONCE = 16384
"""Elements of a row that a block holds at once, even if it needs them once."""
_STREAM_BYTES = 16384
"""What a block of a streamed row brings of the widest operand."""
_LEAST_STREAMED = 1024
_HELD_BYTES, _COPIED, _SHARING = 4 * _STREAM_BYTES, 16, (2, 4, 8)
"""What a block of threads has room for beside others, what TMA moves multiples of, and how many blocks
may share a row."""
_WAVES = 4
"""Programs for each multiprocessor, so that all have work until the end."""
_OF_A_WARP = 128
"""Elements of short rows that a program has at least: lanes of a warp would else have nothing to do."""
_FEW = 16
_TURNS = 4
"""Turns of a loop that are worth a program of their own."""
_MOST_PARTS = 1024
_SUMMED_ELEMENTS, _SUMMED_WIDTH = 4096, 1024
"""Of a tile whose columns are summed up, and its columns where rows need not be whole: so many are neighbours of all
warps, each thread has its columns of every row, and sums that take few registers."""
_SUMMED_VALUES = 112
"""Of 32 bits, that a thread has beside addresses: its sums, and of its rows each operand and what is made of it."""
_SUMMED_WARPS, _LEAST_SUMMED_WARPS, _LEAST_CHUNK = (1, 2, 4, 8, 16, 32), 4, 2
_REGISTERS, _MOST_REGISTERS, _BESIDE_VALUES = 65536, 128, 40
"""Of a multiprocessor, of a thread that carries sums at most, and what such a thread needs beside its values. All
programs stay at once: one that waited for another to end would double the time."""


def choose_gpu_schedule(
    domain: Domain,
    addresses: Sequence[Address],
    machine: Machine,
    *,
    indexed: bool,
    window: bool = False,
    once: bool = False,
    again: bool = False,
) -> Schedule:
    """Pick the schedule of a GPU's kernel from its addresses (over runs).

    `once`: nothing needs the columns again behind the first pass over them; `again`: every pass reads the same operand,
    and no other.
    """
    if not domain.row_runs and not domain.column_runs:
        return Schedule("pointwise", "", 1)
    if not domain.column_runs:
        return _pointwise(domain, addresses, machine)
    columns = {run.name for run in domain.column_runs}
    # What is the same for a whole row is read or written once for all its columns: it does not count.
    inner = [address for address in addresses if symbols_of(address.expr) & columns]
    if window:
        total = _known(run.size for run in domain.column_runs)
        if domain.row_runs and not indexed and total is not None and 0 < total <= MOST_TAPS:
            return replace(_pointwise(domain, addresses, machine), mode="taps")
        if domain.row_runs:
            return replace(_pointwise(domain, addresses, machine), mode="lanes", holds=True)
    if once and not window and (streamed := _streamed(domain, inner, machine)) is not None:
        return streamed
    if again and not window and not indexed and (held := _held(domain, inner, machine)) is not None:
        return held
    return _reduction(domain, inner, machine, indexed=indexed, window=window)


# -- elementwise -----------------------------------------------------------------------------------------------------


def _pointwise(domain: Domain, addresses: Sequence[Address], machine: Machine) -> Schedule:
    runs = domain.row_runs
    addresses = _widest(runs, addresses)
    elements = _elements(addresses, machine)
    vector = max(reversed(runs), key=lambda run: contiguous_bytes(run, addresses))
    known = _known(run.size for run in runs)
    while known is not None and elements > _LEAST_ELEMENTS and known < elements * machine.multiprocessors * _WAVES:
        elements //= 2
    others = [run for run in runs if run is not vector]
    across = _turned(vector, others, addresses)
    if across is not None:
        side = _fitting(across.size, _SIDE)
        width = _fitting(vector.size, max(_SIDE, _SIDE * _SIDE // side))
        side = _fitting(across.size, max(_SIDE, _SIDE * _SIDE // width))
        return Schedule("pointwise", vector.name, width, across.name, side)
    capacity = _fitting(vector.size, elements)
    if others and capacity * 2 <= elements:
        beside = others[-1]
        return Schedule("pointwise", vector.name, capacity, beside.name, _fitting(beside.size, elements // capacity))
    return Schedule("pointwise", vector.name, capacity)


def _widest(runs: Sequence[Run], addresses: Sequence[Address]) -> list[Address]:
    """The addresses that move along most runs: of what is broadcast there is less, and it stays in the caches."""
    names = {run.name for run in runs}
    moves = [len(symbols_of(a.expr) & names) if a.purpose != "position" else -1 for a in addresses]
    return [address for address, count in zip(addresses, moves, strict=True) if count == max(moves)]


def _elements(addresses: Sequence[Address], machine: Machine) -> int:
    """Elements of a tile: less of wide ones, and where many are read at once."""
    memory = [address for address in addresses if address.purpose != "position" and symbols_of(address.expr)]
    widest = max((address.bytes for address in memory), default=4)
    reads = len({address.expr for address in memory if address.purpose == "load"})
    elements = max(_LEAST_ELEMENTS, min(machine.tile_elements, _TILE_BYTES // widest))
    return elements if reads <= _MANY_READS else max(_LEAST_ELEMENTS, elements // 2)


def _turned(vector: Run, others: Sequence[Run], addresses: Sequence[Address]) -> Run | None:
    """The run along which something lies that lies apart along the vector: both are read and written in stretches."""
    apart = [
        address
        for address in addresses
        if address.purpose != "position"
        and (split := coefficient_of(address.expr, vector.name)) is not None
        and split[0] not in (0, 1)
    ]
    best = max(reversed(others), key=lambda run: contiguous_bytes(run, apart), default=None)
    return best if best is not None and contiguous_bytes(best, apart) else None


# -- reductions ------------------------------------------------------------------------------------------------------


def _reduction(domain: Domain, inner: Sequence[Address], machine: Machine, *, indexed: bool, window: bool) -> Schedule:
    column = max(reversed(domain.column_runs), key=lambda run: contiguous_bytes(run, inner))
    row = max(reversed(domain.row_runs), key=lambda run: contiguous_bytes(run, inner), default=None)
    by_rows = row is not None and contiguous_bytes(row, inner) > contiguous_bytes(column, inner)
    total = _known(run.size for run in domain.column_runs)
    beside = row if by_rows else domain.row_runs[-1] if domain.row_runs else None
    least = _least_rows(beside.size, total, machine) if by_rows and beside is not None else 1
    runs = len(domain.column_runs)
    if total and total * least <= _row_limit(domain, inner, machine) and runs <= (1 if indexed else 2):
        return _rows(domain, column, beside if runs == 1 or by_rows else None, total, least, machine)
    schedule = _blocks(domain, column, row if by_rows else None, _elements(inner, machine))
    return schedule if indexed or window else _split(domain, schedule, machine)


def _streamed(domain: Domain, inner: Sequence[Address], machine: Machine) -> Schedule | None:
    """Long rows that need not be held, in blocks, where there are enough of them for the whole machine."""
    column = domain.column_runs[-1]
    along = contiguous_bytes(column, inner)
    others = any(contiguous_bytes(run, inner) >= along for run in domain.row_runs)
    rows = _known(run.size for run in domain.row_runs)
    few = rows is not None and rows < machine.multiprocessors * 2
    held = min(_HELD_ONCE, machine.row_elements)
    if len(domain.column_runs) > 1 or not along or others or few or _estimate(column.size) <= held:
        return None
    widest = max(address.bytes for address in inner if address.purpose != "position")
    elements = min(_STREAM_BYTES // max(widest, 2), 2 * machine.tile_elements)
    return Schedule("stream", column.name, max(elements, _LEAST_STREAMED), holds=True)


def _held(domain: Domain, inner: Sequence[Address], machine: Machine) -> Schedule | None:
    """Long rows of one operand, in blocks that are all kept where TMA brings them: threads read them again
    from there.

    A row that a block of threads has no room for is better held in the registers of several, unless these have no room
    for it either, or places for much more than it has.
    """
    streamed = _streamed(domain, inner, machine) if machine.capabilities.bulk_copies else None
    loads = {(address.expr, address.bytes) for address in inner if address.purpose == "load"}
    columns = domain.column_runs[-1].size
    if streamed is None or len(loads) != 1 or not isinstance(columns, int):
        return None
    ((_, size),) = loads
    unit, memory = _COPIED // size, [address for address in inner if address.purpose != "position"]
    if not all(_begins_at(address.expr, streamed.vector, unit) for address in memory):
        return None
    wasteful = columns * 8 < _power_below(2 * columns - 1) * 7 or columns > machine.row_elements
    counts = (1, *_SHARING) if wasteful else (1,)
    parts = [columns // blocks for blocks in counts if columns % (blocks * unit) == 0]
    return streamed if any(streamed.capacity <= part <= _HELD_BYTES // size for part in parts) else None


def _begins_at(place: Size, run: str, unit: int) -> bool:
    """Whether rows lie along a run, and begin at multiples of so many elements."""
    along = coefficient_of(place, run)
    return along is not None and along[0] == 1 and split_multiple(along[1], unit)[1] == 0


def _least_rows(size: Size, columns: int | None, machine: Machine) -> int:
    """Rows beside each other that are neighbours in memory: where the parts of sums are added up, sectors of few give
    more programs work."""
    if not isinstance(size, int):
        return _ACCESS
    few = columns is not None and columns <= _MOST_PARTS and size < _ACCESS * machine.multiprocessors
    return min(size, _SECTOR if few else _ACCESS)


def _row_limit(domain: Domain, inner: Sequence[Address], machine: Machine) -> int:
    """The elements of a row that registers hold: of less where more than one tensor is read."""
    rows = {run.name for run in domain.row_runs}
    reads = {a.expr for a in inner if a.purpose == "load" and (not rows or symbols_of(a.expr) & rows)}
    limit = machine.row_elements
    for _ in range(1, min(len(reads), _MANY_READS)):
        limit //= 2
    return limit


def _rows(domain: Domain, column: Run, beside: Run | None, total: int, least: int, machine: Machine) -> Schedule:
    """Whole rows: so many that a tile is worth a program, while there are programs for the whole machine."""
    assert isinstance(column.size, int)
    schedule = Schedule("rows", column.name, column.size)
    if beside is None:
        return schedule
    side = _power_below(max(least, machine.tile_elements // total))
    rows = _known(run.size for run in domain.row_runs)
    fewest = max(least, _OF_A_WARP // total)
    while rows is not None and side > fewest and rows < side * machine.multiprocessors * _WAVES:
        side //= 2
    side = _fitting(beside.size, side)
    return schedule if side == 1 else replace(schedule, outer=beside.name, outer_capacity=side)


def _blocks(domain: Domain, column: Run, row: Run | None, elements: int) -> Schedule:
    """Blocks of columns in a loop: beside each other rows, if these are neighbours, or as many columns as there are."""
    longest = max(reversed(domain.column_runs), key=lambda run: _estimate(run.size))
    if row is not None:
        short = isinstance(longest.size, int) and longest.size <= _FEW
        width = _fitting(row.size, elements // max(1, _estimate(longest.size)) if short else _SIDE)
        depth = _fitting(longest.size, max(1, elements // width))
        return Schedule("lanes", row.name, width, longest.name, depth, holds=True)
    width = _fitting(column.size, elements)
    others = [run for run in domain.column_runs if run is not column]
    beside = max(others, key=lambda run: _estimate(run.size), default=domain.row_runs[-1] if domain.row_runs else None)
    if beside is None or width * 2 > elements:
        return Schedule("stream", column.name, width, holds=True)
    side = _fitting(beside.size, elements // width)
    return Schedule("stream", column.name, width, beside.name, side, holds=True)


def _split(domain: Domain, schedule: Schedule, machine: Machine) -> Schedule:
    """Give the columns of few rows to several programs."""
    programs = 1
    for run in domain.row_runs:
        if not isinstance(run.size, int):
            return schedule
        programs *= -(-run.size // (schedule.capacity_of(run) or 1))
    wanted = machine.multiprocessors * _WAVES // max(1, programs)
    longest = max(domain.column_runs, key=lambda run: _estimate(run.size) // (schedule.capacity_of(run) or 1))
    turns = _estimate(longest.size) // (schedule.capacity_of(longest) or 1)
    others = product(_estimate(run.size) // (schedule.capacity_of(run) or 1) or 1 for run in domain.column_runs)
    assert isinstance(others, int)
    worth = turns if others >= turns * _TURNS else turns // _TURNS
    parts = min(wanted, worth, _MOST_PARTS)
    return schedule if parts < 2 else replace(schedule, split=longest.name, parts=parts)


# -- sums of columns -------------------------------------------------------------------------------------------------


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
    along = max(domain.row_runs, key=lambda run: _estimate(run.size), default=None)
    total = _known(run.size for run in columns) or 1
    width = total if whole else _fitting(vector.size, _SUMMED_WIDTH)
    size = 1 if along is None else along.size
    moving = {vector.name} if along is None else {vector.name, along.name}
    widest = max((a.bytes for a in addresses if a.purpose != "position" and symbols_of(a.expr) >= moving), default=4)
    elements = _SUMMED_ELEMENTS if 2 * width <= _SUMMED_ELEMENTS else 2 * _SUMMED_ELEMENTS
    side = min(_power_below(max(1, elements // width)), _power_below(_estimate(size)))
    folds = 2 * width > _SUMMED_WIDTH
    if folds:
        side, warps, beside = _fitting_sums(width, 16 // widest, side, sums, reads)
    else:
        held = _power_below(_SUMMED_VALUES // (sums + reads + 1))
        warps = min(_SUMMED_WARPS[-1], _power_below(2 * max(1, side * width // (32 * held)) - 1))
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


# -- sizes -----------------------------------------------------------------------------------------------------------

_UNKNOWN = 1 << 20


def _estimate(size: Size) -> int:
    """A size; what is not known is long."""
    return size if isinstance(size, int) else _UNKNOWN


def _known(sizes: Iterable[Size]) -> int | None:
    total = product(sizes)
    return total if isinstance(total, int) else None


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _fitting(size: Size, most: int) -> int:
    """A capacity of at most `most` (a power of two below it): all of a run, or of its blocks the largest that waste
    little."""
    limit = _power_below(most)
    if not isinstance(size, int):
        return limit
    if size <= most:
        return max(size, 1)
    capacity = limit
    while capacity > _ACCESS and -(-size // capacity) * capacity * 15 > size * 16:
        capacity //= 2
    return capacity if -(-size // capacity) * capacity * 8 <= size * 9 else limit
