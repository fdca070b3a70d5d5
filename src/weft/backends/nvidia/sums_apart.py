"""Products of one row or two with weights of few bits, by instructions in which every lane sums up what it holds itself.

An instruction sums over what four lanes hold along K, which may be of different groups, so that factors had to be on
weights before. Of one row or two there are columns to spare: lane t's part of a row comes in column 2t (2t + 1 for the
second row), with zeros where the other lanes' parts would be. So lane t finds in its own first two sums what it holds of
a column of weights, and multiplies that with the factor of the group:

    c = digits @ x         16 columns of weights as an instruction's rows; for each group that a lane has a part of
    o = 1 @ x              the sum of the row, where digits begin at 128 or so, not at zero: the same for all columns
    total += factor * (c + offset * o)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.backends.llvm.builder import Function, V
from weft.backends.nvidia.block import i32
from weft.backends.nvidia.dequantize import ONE, Decoder
from weft.backends.nvidia.mma import Fragments, instruction

_ZERO = V("float", "0.0")


def reads_alone(b: Function, lane: V) -> V:
    """Whether a lane is the one that reads, of those which hold the same part of a row."""
    return b.icmp("eq", b.binary("lshr", lane, i32(3)), b.binary("and", lane, i32(3)))


Rows: TypeAlias = Callable[[int, int], Sequence[V]]
"""Gives so many words of the rows from one on, in the order of codes."""
Sums: TypeAlias = Callable[[int, int], V]
"""Gives the sum of the run that begins with a word, of a row."""


def multiply_apart(
    b: Function,
    fragments: Fragments,
    x_of: Rows,
    sum_of: Sums | None,
    decoder: Decoder,
    total: Sequence[V],
    dtype: str,
) -> list[V]:
    """Add the sums of a lane to its totals, [columns of weights, rows]."""
    columns, rows, words = fragments.tiles_n, fragments.m, fragments.vector // 2
    run = min(decoder.group, fragments.vector) // 2
    ones, result = i32(ONE[dtype] << 16 | ONE[dtype]), list(total)
    for first in range(0, fragments.chunks * words, run):
        chunk, start = divmod(first, words)
        x = x_of(first, run)
        summed: list[V] = []
        if decoder.has_offset:
            alike = _multiplied(b, [ones] * run, [ones] * run, x, dtype) if sum_of is None else []
            summed = alike if sum_of is None else [sum_of(first, row) for row in range(rows)]
        for column in range(0, columns, 2):
            beside = min(column + 1, columns - 1)  # of a single one, the same again, which nobody reads
            pairs = [decoder.digits((chunk * columns + each) * words + start, run) for each in (column, beside)]
            made = _multiplied(b, *pairs, x, dtype)
            for each in range(min(2, columns - column)):
                factor, offset = decoder.scale((chunk * columns + column + each) * words + start)
                for row in range(rows):
                    value, place = made[2 * each + row], (column + each) * rows + row
                    value = value if offset is None else _fused(b, offset, summed[row], value)
                    result[place] = _fused(b, factor, value, result[place])
    return result


def _multiplied(b: Function, upper: Sequence[V], lower: Sequence[V], x: Sequence[V], dtype: str) -> list[V]:
    """What instructions sum up of 8 columns of weights and 8 more."""
    sums = [_ZERO] * 4
    for step in range(0, len(x), 2):
        weights = [upper[step], lower[step], upper[step + 1], lower[step + 1]]
        sums = instruction(b, sums, weights, x[step : step + 2], dtype)
    return sums


def _fused(b: Function, x: V, y: V, z: V) -> V:
    return b.intrinsic("fma", x, y, z)
