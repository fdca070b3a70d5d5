"""Skinny GEMM: matmuls of few rows on a GPU take as long as it takes to read the weights.

A program has 8, 16 or 32 rows of weights [N, K], and its warps share K. Where TMA brings them it has few,
unless the other operand is then read too often. Where threads read them, all multiprocessors should have as much to
read as the others, and at any time enough warps that wait for memory.
"""

from __future__ import annotations

from math import ceil, inf

from weft.ir.expr import Size
from weft.lower.machine import Machine

LEAST_BROUGHT = 1 << 20
"""Bytes of weights from which on TMA brings them: of fewer, threads have asked for all before it has set
out."""
_PIECE = 8192
"""Weights that it brings at a time, for eight warps."""
_AT_ONCE, _AGAIN = 2, 0.6
"""Programs that a multiprocessor then has at once, and what a row of the other operand costs beside one of weights."""
_COLUMNS, _WARPS = (16, 8, 32), (4, 8, 16, 2)
READ = {16: 1024, 8: 2048, 4: 4096}
"""Weights of so many bits that a warp reads at a time: of 16 rows a line of memory each."""
_LEAST = 16
"""Bytes of a row that a lane reads at a time."""
_LANES = 4
"""Lanes that read a row."""
_ROW_TILES = ((48, (16, 2048)), (128, (16, 1024)), (inf, (32, 1024)))
"""Of one row, and weights of 4 bits: tiles of eight warps, by how many rows of weights a multiprocessor has at most."""
_ROOM = 28
"""Warps of such programs that a multiprocessor has room for."""
_ENOUGH = 16
"""Warps of a multiprocessor that keep the memory busy."""
_ROWS_AGAIN = 0.02
"""What it costs to read 8 rows of the other operand for every 16 of weights, beside reading these."""


def choose_streaming_tiles(
    m: int, n: Size, k: Size, batch: Size, machine: Machine, bits: int = 16, products: int = 1
) -> tuple[int, int, int]:
    """The tiles of matmuls [m, k] x [k, n], of the same rows, with weights of so many bits."""
    read, rows = READ[bits], ceil(m / 8) * 16 / bits
    if not isinstance(n, int) or not isinstance(k, int) or not isinstance(batch, int) or not batch * n:
        columns, warps = _COLUMNS[0], _WARPS[0]
    elif bits == 16 and machine.capabilities.bulk_copies and (columns := _brought(m, n, k, batch, machine, products)):
        return m, columns, _PIECE // products // columns
    elif m == 1 and bits == 4 and batch * n > _COLUMNS[0] * machine.multiprocessors:
        read_at_once = batch * n * products
        columns, depth = next(tile for most, tile in _ROW_TILES if read_at_once <= most * machine.multiprocessors)
        columns = max(columns // products, _COLUMNS[0])
        warps = depth * columns // read
    else:
        choices = [(c, w) for w in _WARPS for c in _COLUMNS if w * read // c < 2 * k or w == _WARPS[0]]
        columns, warps = min(choices, key=lambda c: _cost(rows, *c, batch * ceil(n / c[0]) / machine.multiprocessors))
    depth = warps * read // columns
    least = 16 if bits == 16 else _LANES * _LEAST * 8 // bits
    while isinstance(k, int) and depth > least and depth // 2 >= k:
        depth //= 2
    # A side of one element is no axis.
    return m, 1 if n == 1 else columns, 1 if k == 1 else depth


def _brought(m: int, n: int, k: int, batch: int, machine: Machine, products: int) -> int:
    """How many rows of weights TMA brings to one program; 0 if it has no whole pieces of them, or too few.

    Programs run in waves, and each reads the other operand too: from near, and one row of it stays nearest.
    """

    def cost(columns: int) -> float:
        waves = ceil(batch * ceil(n / columns) / (_AT_ONCE * machine.multiprocessors))
        return waves * (columns * products + _AGAIN * (m - 1))

    whole = [columns for columns in sorted(_COLUMNS) if k % (_PIECE // products // columns) == 0]
    return min(whole, key=cost, default=0) if batch * n * k * 2 * products >= LEAST_BROUGHT else 0


def _cost(rows: float, columns: int, warps: int, programs: float) -> float:
    """How long it takes with so many programs a multiprocessor, for each byte that is read.

    The other operand has `rows` times 8 rows of as many bytes as weights have.
    """
    room = _ROOM // warps
    # All run at once, or some come when others are done: then the memory has less to do at the end.
    busiest = ceil(programs) if programs <= room else programs + 0.5
    waiting = min(ceil(programs), room) * warps
    again = _ROWS_AGAIN * rows * 16 / columns
    return busiest / programs * (max(1.0, _ENOUGH / waiting) + again)
