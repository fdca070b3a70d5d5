"""The blocks of a matmul for processors with many cores: programs enough for any number of threads, and even ones.

A model of the time that a program takes, in cycles of a core, rates all sides of blocks; a choice has to do well for
every number of threads that is likely, since programs are compiled before it is known.
"""

from __future__ import annotations

from functools import lru_cache

_THREADS = (1, 2, 4, 8, 16)
"""Numbers of threads that a choice is rated for."""
_MOST_ROWS, _MOST_COLUMNS = 256, 256
_MOST_PARTS = 48
"""Numbers of blocks of rows that are tried, from the least on."""
_LEAST_HEIGHT = 4
"""A block of fewer rows takes as long as one of so many: it waits for memory, or for sums under way."""
_READ_A, _READ_B, _WRITE, _START = 0.35, 0.35, 1.0, 400.0
"""Cycles for an element of either operand, for one of the result with what follows it, and for a program."""
_READ_WINDOWS = 0.1
"""Cycles for an element of windows: most of them are in those that the program before has read."""
_ADD_PART = 0.25
"""Cycles for an element of the result that is added to once more, as another part of K ends."""


@lru_cache(maxsize=1024)
def even_blocks(
    m: int, n: int, k: int, batch: int, unit: tuple[int, int], depth: int, rate: float = 1.0, windows: bool = False
) -> tuple[int, int]:
    """The rows and columns of a block, of a matmul whose micro-kernels have `unit` rows and columns.

    `depth` is how much of K is summed up at a time, `rate` the time of a multiplication as a share of that in f32. Rows
    may be `windows`, which overlap.
    """
    height, width = unit
    sides = [(rows, columns) for rows in _heights(m, height) for columns in _widths(n, width)]
    times: dict[tuple[int, int], list[float]] = {}
    for rows, columns in sides:
        programs = batch * -(-m // rows) * -(-n // columns)
        one = _cycles(rows, columns, k, unit, depth, rate, _READ_WINDOWS if windows else _READ_A)
        times[rows, columns] = [-(-programs // threads) * one for threads in _THREADS]
    best = [min(each) for each in zip(*times.values(), strict=True)]
    return min(sides, key=lambda side: sum(t / b for t, b in zip(times[side], best, strict=True)))


def _heights(m: int, unit: int) -> list[int]:
    """Blocks of about the same height, some of whole micro-kernels but for the last."""
    found: set[int] = set()
    least = -(-m // _MOST_ROWS)
    for parts in range(least, least + _MOST_PARTS):
        rows = -(-m // parts)
        whole = min(m, -(-rows // unit) * unit)
        found.update(each for each in (rows, whole) if each <= _MOST_ROWS)
        if rows <= unit:
            break
    return sorted(found)


def _widths(n: int, unit: int) -> list[int]:
    whole = -(-n // unit)
    return [unit * panels for panels in range(1, min(whole, _MOST_COLUMNS // unit) + 1)]


def _cycles(rows: int, columns: int, k: int, unit: tuple[int, int], depth: int, rate: float, read_a: float) -> float:
    height, width = unit
    if rate == 1.0:  # micro-kernels of floats have any height up to the unit: blocks of rows are even
        tall = max(rows, -(-rows // height) * _LEAST_HEIGHT)
    else:
        blocks, rest = divmod(rows, height)
        tall = blocks * height + (max(rest, _LEAST_HEIGHT) if rest else 0)
    panels = -(-columns // width)
    parts = -(-k // depth)
    multiply = panels * tall * k * rate
    moved = (read_a * rows * k + _READ_B * columns * k) * (1.0 if rate == 1.0 else 0.5)
    return multiply + moved + rows * columns * (_WRITE + _ADD_PART * (parts - 1)) + _START
