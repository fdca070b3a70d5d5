"""Dots of one row with weights of few bits, in which every lane sums up what it holds itself.

An instruction sums over what four lanes hold along K, which may be of different groups: factors would have to be on the
weights before. Of one row there are columns to spare: lane t's part of it comes in column 2t, with zeros where those of
other lanes would be. So lane t finds in its own sums what it holds of a column of weights, and multiplies that with
the factor of the group:

    c = digits @ x         16 columns of weights as an instruction's rows; for each group that a lane has a part of
    o = 1 @ x              the sum of the row, where digits begin at 128 or so, not at zero: the same for all columns
    total += factor * (c + offset * o)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.emit.dot.dequantize import ONE, Decoder
from weft.backends.nvidia.emit.dot.lhs_row import LhsRowParts, held_by
from weft.backends.nvidia.emit.dot.mma import instruction
from weft.backends.nvidia.ir.mma import MmaOp

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_ZERO = V("float", "0.0")


class Parts(Protocol):
    """What a lane has of the row in an iteration."""

    def words(self, first: int, count: int) -> list[V]:
        """So many words from one on, in the order of codes."""
        ...

    def sum(self, first: int, x: Sequence[V]) -> V:
        """The sum of words from one on."""
        ...


@dataclass(frozen=True)
class LoadedParts:
    """Parts that a lane has loaded."""

    b: Function
    loaded: Sequence[V]
    decoder: Decoder

    def words(self, first: int, count: int) -> list[V]:
        return self.decoder.ordered(self.loaded[first : first + count])

    def sum(self, first: int, x: Sequence[V]) -> V:
        dtype = self.decoder.dtype.name
        ones = [i32(ONE[dtype] << 16 | ONE[dtype])] * len(x)
        return _multiplied(self.b, ones, ones, x, dtype)[0]


def multiply_per_lane(codegen: KernelCodegen, op: MmaOp, decoder: Decoder, total: Sequence[V]) -> list[V]:
    """Add the sums of a lane to its totals, one for each column of weights."""
    b, fragments, held = codegen.b, op.fragments, held_by(op)
    columns, words = fragments.tiles_n, fragments.vector // 2
    parts: Parts = LoadedParts(b, codegen.tiles[op.a], decoder) if held is None else LhsRowParts(codegen, held)
    run, result = min(decoder.group, fragments.vector) // 2, list(total)
    for first in range(0, fragments.chunks * words, run):
        chunk, start = divmod(first, words)
        x = parts.words(first, run)
        summed = parts.sum(first, x) if decoder.has_offset else None
        for column in range(0, columns, 2):
            beside = min(column + 1, columns - 1)  # of a single one, the same again, which nobody reads
            upper, lower = (decoder.digits((chunk * columns + each) * words + start, run) for each in (column, beside))
            made = _multiplied(b, upper, lower, x, op.dtype.data)[::2]
            for place, value in zip(range(column, columns), made, strict=False):
                factor, offset = decoder.scale((chunk * columns + place) * words + start)
                if offset is not None and summed is not None:
                    value = b.intrinsic("fma", offset, summed, value)
                result[place] = b.intrinsic("fma", factor, value, result[place])
    return result


def _multiplied(b: Function, upper: Sequence[V], lower: Sequence[V], x: Sequence[V], dtype: str) -> list[V]:
    """What instructions sum up of 8 columns of weights and 8 more."""
    sums = [_ZERO] * 4
    for step in range(0, len(x), 2):
        weights = [upper[step], lower[step], upper[step + 1], lower[step + 1]]
        sums = instruction(b, sums, weights, x[step : step + 2], dtype)
    return sums
