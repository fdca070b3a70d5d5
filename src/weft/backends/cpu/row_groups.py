"""The rows of a tile as blocks of the heights that micro-kernels have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64


def row_groups(b: Function, extent: V, capacity: int, rows: int, *, even: bool = False) -> Iterator[tuple[V, int, V]]:
    """Blocks of one height, and lower ones for the rest: the first row, the height, and how many.

    Where the extent is known, blocks may be `even` instead of `rows` high: a last one of few rows takes longer than its
    share. What is yielded stands under its condition, so that code made then is run if there are such rows.
    """
    if not extent.name.startswith("%"):
        if even:
            rows = even_height(int(extent.name), rows)
        blocks, rest = divmod(int(extent.name), rows)
        if blocks:
            yield i64(0), rows, i64(blocks)
        if rest:
            yield i64(blocks * rows), rest, i64(1)
        return
    whole = b.binary("udiv", extent, i64(rows))
    start = b.mul(whole, i64(rows))
    rest = b.sub(extent, start)
    if capacity >= rows:
        yield i64(0), rows, whole
    for height in _powers_below(min(rows, capacity + 1)):
        some = b.binary("and", rest, i64(height))
        with b.when(b.icmp("ne", some, i64(0))):
            yield start, height, i64(1)
        start = b.add(start, some)


def even_height(extent: int, most: int) -> int:
    """The height of the fewest blocks that cover an extent, if they are about the same."""
    return max(1, -(-extent // max(1, -(-extent // most))))


def _powers_below(limit: int) -> Sequence[int]:
    """The powers of two below a limit, the largest first."""
    return [1 << i for i in range(limit.bit_length() - 1, -1, -1) if 1 << i < limit]
