"""How long a matmul takes on a GPU's tensor cores with tiles of given sides: what schedules are chosen and judged by.

A multiprocessor multiplies, its shared memory feeds the tensor cores, the L2 cache feeds that, and memory
feeds all: the slowest of them sets the pace. The last wave of tiles takes as long as a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.lower.machine import Machine
from weft.ops.matmul.dot import Dot, ScaledDot, TiledDot
from weft.passes.claim_libraries import FEW_ROWS, ROWS_OF_TILE

_TILES = ((128, 256), (256, 128), (128, 192), (128, 128), (64, 256), (64, 128), (64, 64))
"""The sides of a matmul's tiles: 64 rows for each warp group, or 128 for each of two."""
_LINE = 128
"""Bytes of K that come together."""
_ROWS = 64
"""Of a warp group's instruction, which reads them and all columns from shared memory."""
_MULTIPLIED, _READ, _COPIED = 4096, 128, 60
"""What a multiprocessor multiplies of bytes in a cycle, what it reads of them from shared memory, and what it gets from
the L2 cache."""
_CACHE = "the L2 cache"
_SHARERS = 2
"""Programs of a cluster that is tried."""
_BETWEEN = 800
"""Cycles from one tile to the next."""
_CLOCK, _MEMORY, _START = 1.5e9, 4.0e12, 3e-6
"""Cycles a second under load, where power sets them; bytes a second of memory; the seconds until all have begun."""
_BUSY, _IDLE, _AGAIN = 0.8, 0.2, 2.0e13
"""The part of the multiprocessors that must read to keep the memory busy. Where weights are read once: what the others
would still gain, and bytes a second of the other operand, which all programs read."""
_COLUMNS = (128, 112, 96, 80, 64)
"""Columns of tiles of such rows: more would leave no room for the next kernel's blocks beside them."""
_MOST_PARTS, _SUM_BYTES = 32, 4
"""Parts that K is cut into, and the bytes of their sums."""
_JOINING, _NEAR, _NEAR_BYTES = 2.0e-6, 1.0e13, 24 << 20
"""Seconds that a kernel takes that adds parts, and bytes a second that the L2 cache writes and reads of them, if they
are no more than it has room for beside the operands."""
_WORTH = 0.88
"""What is left of the time where K is cut: less of a gain is less than the model knows."""
_LOADED = {(64, 64): 2, (128, 128): 1}
"""Tiles where threads load each element and stage it for the tensor cores, and how many lie on a multiprocessor."""
_LOAD_WAIT, _LOAD_WORK = 0.6e-6, 3.1e-9
"""The seconds that they wait for 64 of K, while others may work, and those that a row or column takes of them."""
_MOST_SUMS = 64 * 256
"""Elements that a warp group has registers to sum up."""
_TILES_IN_PARTS = ((128, 256), (128, 192), (128, 128), (64, 128), (64, 64))
"""Those that leave room for another sum beside each: of the widest, one half at a time."""
_ODD, _LOST, _LOST_BY_HALVES = 192, 1.06, 1.1
"""Columns of tiles that are slower than the parts of them, and by how much; the same of tiles that are summed half by
half, of which that is a guess: measured they may win."""


@dataclass(frozen=True)
class Matmuls:
    """Matmuls of the same [m, k] with `count` of [k, n], `batch` times, of operands `width` bytes wide.

    Where they are summed up `in_parts`, each takes registers twice. Rows that begin anywhere are `loaded` by threads:
    TMA does not bring them.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    width: int = 2
    count: int = 1
    in_parts: bool = False
    loaded: bool = False


@dataclass(frozen=True)
class Split:
    """K cut into `count` parts of `depth` each, but for the last, which has what is left."""

    count: int
    depth: int
    seconds: float
    """That they and what adds them should take."""


@dataclass(frozen=True)
class Estimate:
    """Tiles, the seconds that they should take, and what these are spent on."""

    sides: tuple[int, ...]
    """Of M, N and K, and how many programs are a cluster, if they are."""
    seconds: float
    bound: str

    def __str__(self) -> str:
        return f"{self.seconds * 1e6:.3g} µs predicted, by {self.bound}"


def products_of(dots: Sequence[Dot]) -> Matmuls | None:
    """The matmuls of a group, if they are such as the tensor cores take in tiles and their sizes are known."""
    if not dots:
        return None
    (*leading, m, k), result = tensor_of(dots[0].operands[0].type).shape, tensor_of(dots[0].results[0].type)
    n, dtype = result.shape[-1], tensor_of(dots[0].operands[0].type).dtype
    batch = product(leading)
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(batch, int)):
        return None
    if not (dtype.is_float and dtype.bytes == 2) and not (dtype.bytes == 1 and result.dtype.bytes == 4):
        return None
    return Matmuls(m, n, k, batch, dtype.bytes, len(dots), is_in_parts(dots[0])) if m > FEW_ROWS else None


def is_in_parts(dot: Dot | ScaledDot | TiledDot) -> bool:
    """Whether blocks of K are summed up apart: tensor cores keep fewer digits of sums of 8-bit floats."""
    dtype = tensor_of(dot.operands[0].type).dtype
    return dtype.is_float and dtype.bytes == 1 and not dot.params.get("fast")


def estimates(products: Matmuls, machine: Machine, height: int | None = None) -> list[Estimate]:
    """All tiles that there is room for, of a `height` if it is given, the fastest first."""
    tiles = [tile for tile in _TILES if not products.in_parts or tile in _TILES_IN_PARTS]
    if products.loaded:
        tiles = list(_LOADED)
    elif height is not None:
        tiles = [tile for tile in tiles if tile[0] == height and (height > _ROWS or tile[1] <= _COLUMNS[0])]
    elif products.m <= ROWS_OF_TILE and products.width == 2:
        tiles = [(ROWS_OF_TILE, columns) for columns in _COLUMNS if products.count * columns <= _COLUMNS[0]]
    fitting = [tile for tile in tiles if products.count * _summed(tile) <= _MOST_SUMS]
    return sorted((estimate(products, tile, machine) for tile in fitting), key=lambda each: each.seconds)


def in_clusters(products: Matmuls, machine: Machine) -> list[Estimate]:
    """Tiles that wait for the L2 cache and would be the fastest of all if neighbours brought each other what
    they share, the best first.

    Only measuring chooses them: where tensor cores set the pace, clusters were no faster, and of others nothing is
    known yet.
    """
    alone = estimates(products, machine)
    waiting = [each.sides for each in alone if each.bound == _CACHE and products.m % (_SHARERS * each.sides[0]) == 0]
    found = [estimate(products, sides, machine, _SHARERS) for sides in waiting]
    return sorted((each for each in found if each.seconds < alone[0].seconds), key=lambda each: each.seconds)


def _summed(tile: Sequence[int]) -> int:
    """The elements of a tile that one warp group sums up."""
    rows, columns = tile
    return rows * columns // (1 if rows <= _ROWS else 2)


def split_of(products: Matmuls, machine: Machine) -> Split | None:
    """How K is best cut, each part for programs of its own: where there are too few tiles; None where it is not."""
    if products.width != 2 or products.m <= FEW_ROWS:
        return None
    side = _LINE // products.width
    turns = ceil(products.k / side)
    best, least = None, estimates(products, machine)[0].seconds * _WORTH
    for depth in sorted({ceil(turns / parts) * side for parts in range(2, _MOST_PARTS + 1)}, reverse=True):
        parts = ceil(products.k / depth)
        each = replace(products, k=depth, batch=parts * products.batch)
        sums = parts * products.batch * products.count * products.m * products.n * _SUM_BYTES
        adding = _JOINING + 2 * sums / (_NEAR if sums <= _NEAR_BYTES else _MEMORY)
        seconds = estimates(each, machine)[0].seconds + adding
        if parts > 1 and seconds < least:
            best, least = Split(parts, depth, seconds), seconds
    return best


def estimate(products: Matmuls, tile: Sequence[int], machine: Machine, sharers: int = 1) -> Estimate:
    """What the model says of tiles of these rows and columns, where `sharers` below each other share the columns."""
    bm, bn = tile[:2]
    rows, columns = ceil(products.m / bm), ceil(products.n / bn)
    if products.loaded:
        return _loaded(products, (bm, bn), rows * columns * products.batch, machine)
    waves = ceil(rows * columns * products.batch / machine.multiprocessors)
    depth = products.k * products.width
    lost = _LOST if bn == _ODD else _LOST_BY_HALVES if products.in_parts and bn > _ODD else 1.0
    cycles = {
        "tensor cores": products.count * bm * bn * depth / _MULTIPLIED,
        "shared memory": products.count * ceil(bm / _ROWS) * (_ROWS + bn) * depth / _READ,
        _CACHE: (bm + products.count * bn / sharers) * depth / _COPIED,
    }
    seconds = {name: waves * (each * lost + _BETWEEN) / _CLOCK for name, each in cycles.items()}
    busy = min(1.0, rows * columns * products.batch / machine.multiprocessors)
    idle, again = 1.0, 0.0
    if products.m <= ROWS_OF_TILE:
        idle += _IDLE * (1.0 - busy)
        again = bm * columns * products.batch * depth / _AGAIN
    seconds["memory"] = _moved(products, bm, bn, machine) / _MEMORY * max(idle, _BUSY / busy) + again
    bound = max(seconds, key=seconds.__getitem__)
    sides = (bm, bn, _LINE // products.width, *([sharers] if sharers > 1 else []))
    return Estimate(sides, seconds[bound] + _START, bound)


def _loaded(products: Matmuls, tile: tuple[int, int], tiles: int, machine: Machine) -> Estimate:
    """The same where threads load what they multiply: they wait for memory, and others work meanwhile."""
    side, beside = _LINE // products.width, _LOADED[tile]
    work = (tile[0] + products.count * tile[1]) * _LOAD_WORK
    waves = ceil(tiles / (machine.multiprocessors * beside))
    turn = max(waves * (_LOAD_WAIT + work), tiles / machine.multiprocessors * work)
    seconds = {"loads": ceil(products.k / side) * turn, "memory": _moved(products, *tile, machine) / _MEMORY}
    bound = max(seconds, key=seconds.__getitem__)
    return Estimate((*tile, side), seconds[bound] + _START, bound)


def _moved(products: Matmuls, bm: int, bn: int, machine: Machine) -> float:
    """Bytes that memory moves: what a wave of tiles shares is read once, and results are written once."""
    rows, columns = ceil(products.m / bm), ceil(products.n / bn)
    at_once = min(machine.multiprocessors, rows * columns)
    down = min(rows, max(1, round(sqrt(at_once * products.count * bn / bm))), at_once)
    across = min(columns, at_once / down)
    waves = rows * columns / (down * across)
    operands = waves * (down * bm + across * products.count * bn) * products.k * products.width
    least = (products.m + products.count * products.n) * products.k * products.width
    return products.batch * (max(least, operands) + 2 * products.m * products.n)
