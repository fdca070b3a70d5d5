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

from collections.abc import Sequence
from dataclasses import replace

from weft.ir.expr import Size, coefficient_of, product, split_multiple, symbols_of
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Address
from weft.lower.machine import Machine
from weft.lower.schedule.capacities import ACCESS, estimated, fitting_capacity, known_product, power_below
from weft.lower.schedule.schedule import MOST_TAPS, Schedule, contiguous_bytes

_TILE_BYTES = 4096
"""Of the widest operand of elementwise work, for a program: 32 bytes for each of 128 threads."""
_LEAST_ELEMENTS = 256
_MANY_READS = 4
_SIDE = 64
"""A side of a tile that is turned: 128 bytes of 16-bit elements."""
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
        total = known_product(run.size for run in domain.column_runs)
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
    known = known_product(run.size for run in runs)
    while known is not None and elements > _LEAST_ELEMENTS and known < elements * machine.multiprocessors * _WAVES:
        elements //= 2
    others = [run for run in runs if run is not vector]
    across = _turned(vector, others, addresses)
    if across is not None:
        side = fitting_capacity(across.size, _SIDE)
        width = fitting_capacity(vector.size, max(_SIDE, _SIDE * _SIDE // side))
        side = fitting_capacity(across.size, max(_SIDE, _SIDE * _SIDE // width))
        return Schedule("pointwise", vector.name, width, across.name, side)
    capacity = fitting_capacity(vector.size, elements)
    if others and capacity * 2 <= elements:
        beside = others[-1]
        return Schedule(
            "pointwise", vector.name, capacity, beside.name, fitting_capacity(beside.size, elements // capacity)
        )
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
    total = known_product(run.size for run in domain.column_runs)
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
    rows = known_product(run.size for run in domain.row_runs)
    few = rows is not None and rows < machine.multiprocessors * 2
    held = min(_HELD_ONCE, machine.row_elements)
    if len(domain.column_runs) > 1 or not along or others or few or estimated(column.size) <= held:
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
    wasteful = columns * 8 < power_below(2 * columns - 1) * 7 or columns > machine.row_elements
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
        return ACCESS
    few = columns is not None and columns <= _MOST_PARTS and size < ACCESS * machine.multiprocessors
    return min(size, _SECTOR if few else ACCESS)


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
    side = power_below(max(least, machine.tile_elements // total))
    rows = known_product(run.size for run in domain.row_runs)
    fewest = max(least, _OF_A_WARP // total)
    while rows is not None and side > fewest and rows < side * machine.multiprocessors * _WAVES:
        side //= 2
    side = fitting_capacity(beside.size, side)
    return schedule if side == 1 else replace(schedule, outer=beside.name, outer_capacity=side)


def _blocks(domain: Domain, column: Run, row: Run | None, elements: int) -> Schedule:
    """Blocks of columns in a loop: beside each other rows, if these are neighbours, or as many columns as there are."""
    longest = max(reversed(domain.column_runs), key=lambda run: estimated(run.size))
    if row is not None:
        short = isinstance(longest.size, int) and longest.size <= _FEW
        width = fitting_capacity(row.size, elements // max(1, estimated(longest.size)) if short else _SIDE)
        depth = fitting_capacity(longest.size, max(1, elements // width))
        return Schedule("lanes", row.name, width, longest.name, depth, holds=True)
    width = fitting_capacity(column.size, elements)
    others = [run for run in domain.column_runs if run is not column]
    beside = max(others, key=lambda run: estimated(run.size), default=domain.row_runs[-1] if domain.row_runs else None)
    if beside is None or width * 2 > elements:
        return Schedule("stream", column.name, width, holds=True)
    side = fitting_capacity(beside.size, elements // width)
    return Schedule("stream", column.name, width, beside.name, side, holds=True)


def _split(domain: Domain, schedule: Schedule, machine: Machine) -> Schedule:
    """Give the columns of few rows to several programs."""
    programs = 1
    for run in domain.row_runs:
        if not isinstance(run.size, int):
            return schedule
        programs *= -(-run.size // (schedule.capacity_of(run) or 1))
    wanted = machine.multiprocessors * _WAVES // max(1, programs)
    longest = max(domain.column_runs, key=lambda run: estimated(run.size) // (schedule.capacity_of(run) or 1))
    turns = estimated(longest.size) // (schedule.capacity_of(longest) or 1)
    others = product(estimated(run.size) // (schedule.capacity_of(run) or 1) or 1 for run in domain.column_runs)
    assert isinstance(others, int)
    worth = turns if others >= turns * _TURNS else turns // _TURNS
    parts = min(wanted, worth, _MOST_PARTS)
    return schedule if parts < 2 else replace(schedule, split=longest.name, parts=parts)


# -- sums of columns -------------------------------------------------------------------------------------------------
