"""The tensor cores that every GPU has since Ampere: dots of tiles in the registers of a warp (`mma.sync`).

    %c = nvidia.mma %a, %b, %acc         a: 16x16, b: 16x8 and c: 16x8 at a time, in pieces of a warp's registers

An instruction takes two times two neighbours along K of each operand from a lane. Which numbers along K these are is
the same to the sum as long as both operands agree. So a lane holds 8 neighbours, which one access of memory brings, and
two instructions take them in turn: operands come straight from memory, and nothing passes between threads.

With up to 8 rows of activations and weights of few bits, operands change places: weights fill the 16 rows of an
instruction and activations its 8 columns. `c` is then *turned* (transposed), and half as many instructions are left.
Weights of 16 bits leave the tensor cores time enough. With one row of activations there are columns to spare, and what
each lane holds along K is summed up *apart* (`emit/dot/per_lane_dot.py`).

Operands are *packed*: a register holds two neighbours along K. Where a tile is too small for all warps of a block, they
share its K, and the dot has one more axis in front, along which what they have is then summed up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    result_def,
)

from weft.backends.nvidia.ir.layouts import Layout, Mode
from weft.backends.nvidia.matmul_unit import MMA
from weft.ir.attributes import from_attribute
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile

ROWS, COLUMNS, DEPTH = MMA.rows, MMA.column_step, MMA.depth_bytes // 2
"""The sides of an instruction's operands, whose elements have 16 bits."""
LANES = 4
"""Lanes that share an instruction's K."""
HALF, _MOST_TURNED = 8, 8
PACKED, AHEAD, RAW = "nvidia.packed", "nvidia.ahead", "nvidia.raw"
"""On a load: its registers hold 4 bytes of neighbours each; it is made an iteration of its loop before its tile is
used; its registers hold elements as memory does."""
SPREAD = "nvidia.spread"
"""On the load of one row: of the lanes that hold the same, one reads it, whose column nobody else has; the others have
zeros."""
HELD = "nvidia.held"
"""On such a load: the place in shared memory where the block has all of the row (`lhs_row`)."""
AGAIN = "nvidia.again"
"""On such a load: the block reads the same again, so that it stays in its cache."""


@irdl_op_definition
class MmaOp(WeftOp):
    """`a @ b` plus the accumulator, by the tensor cores from registers; a and b are packed.

    Where warps share K, the result is [warps along K, M, N]: what each of them has; `apart`, what four lanes of each
    have.
    """

    name = "nvidia.mma"
    a = operand_def(tile.TileType)
    b = operand_def(tile.TileType)
    accumulator = opt_operand_def(tile.TileType)
    dtype = attr_def(StringAttr)
    warps = attr_def(Attribute)
    widest = attr_def(IntegerAttr)
    apart = opt_attr_def(UnitAttr)
    out = result_def(tile.TileType)

    @property
    def fragments(self) -> Fragments:
        """Where its operands and its result are."""
        (m, k), n = tile.tile_type(self.a).sizes, tile.tile_type(self.b).sizes[1]
        warps = Warps(*from_attribute(self.warps))  # type: ignore[misc]
        return Fragments(m, n, k, warps, self.widest.value.data, self.apart is not None)


@irdl_op_definition
class PackOp(WeftOp):
    """The same tile packed, as an operand of a dot; what does not exist is zero."""

    name = "nvidia.pack"
    value = operand_def(tile.TileType)
    dtype = attr_def(StringAttr)
    out = result_def(tile.TileType)


@irdl_op_definition
class SqueezeOp(WeftOp):
    """A tile without its first axis, which has size 1."""

    name = "nvidia.squeeze"
    value = operand_def(tile.TileType)
    out = result_def(tile.TileType)

    @classmethod
    def make(cls, value: SSAValue) -> Self:
        type_ = tile.tile_type(value)
        return cls.create(operands=[value], result_types=[tile.TileType.of(type_.sizes[1:], type_.dtype)])


OPS: list[type[IRDLOperation]] = [MmaOp, PackOp, SqueezeOp]


@dataclass(frozen=True)
class Warps:
    """How the warps of a block share a dot: so many along M, N and K, and so many times the same."""

    m: int = 1
    n: int = 1
    k: int = 1
    same: int = 1

    @property
    def count(self) -> int:
        return self.m * self.n * self.k * self.same

    def modes(self, *axes: tuple[int | None, int]) -> tuple[Mode, ...]:
        """The modes of a layout, from an axis and a step along each of M, N and K."""
        modes = [Mode(size, axis, step) for size, (axis, step) in zip((self.m, self.n, self.k), axes, strict=True)]
        modes = [mode if mode.axis is not None else Mode(mode.size, None) for mode in (*modes, Mode(self.same, None))]
        return tuple(mode for mode in modes if mode.size > 1)


@dataclass(frozen=True)
class Fragments:
    """The layouts of a dot [m, k] x [k, n] and its operands."""

    m: int
    n: int
    k: int
    warps: Warps
    widest: int = 8
    """Neighbours along K that a lane should hold: as many as one access of memory brings."""
    apart: bool = False
    """Whether what each lane holds along K is summed up by itself."""

    @property
    def halves(self) -> int:
        """How many of an instruction's two times eight rows there are."""
        return 2 if self.m > HALF else 1

    @property
    def turned(self) -> bool:
        """Whether instructions take columns for rows, two times eight of them at once.

        Of more warps there would be no registers to turn what they have in common.
        """
        coded = self.widest > HALF
        return coded and 1 < self.m <= HALF and self.tiles_n % 2 == 0 and self.warps.k <= _MOST_TURNED

    @property
    def tiles_m(self) -> int:
        """Instructions along M, for each warp."""
        return -(-self.m // (ROWS * self.warps.m))

    @property
    def tiles_n(self) -> int:
        return -(-self.n // (COLUMNS * self.warps.n))

    @property
    def depth(self) -> int:
        """What each warp has of K."""
        return self.k // self.warps.k

    @property
    def vector(self) -> int:
        """Neighbours along K that a lane holds."""
        vector = self.widest
        while vector > 4 and self.depth % (4 * vector):
            vector //= 2
        return vector

    @property
    def chunks(self) -> int:
        """How many times a lane has such neighbours."""
        return self.depth // (4 * self.vector)

    def left(self) -> Layout:
        registers = (
            Mode(self.vector, 1),
            Mode(self.halves, 0, HALF),
            Mode(self.tiles_m, 0, ROWS),
            Mode(self.chunks, 1, 4 * self.vector),
        )
        lanes = (Mode(LANES, 1, self.vector), Mode(8, None if self.apart else 0))
        warps = self.warps.modes((0, ROWS * self.tiles_m), (None, 1), (1, self.depth))
        return Layout((self.m, self.k), _real(registers), lanes, warps)

    def right(self) -> Layout:
        registers = (
            Mode(self.vector, 0),
            Mode(self.tiles_n, 1, COLUMNS),
            Mode(self.chunks, 0, 4 * self.vector),
        )
        lanes = (Mode(LANES, 0, self.vector), Mode(8, 1))
        warps = self.warps.modes((None, 1), (1, COLUMNS * self.tiles_n), (0, self.depth))
        return Layout((self.k, self.n), _real(registers), lanes, warps)

    def codes(self, together: int) -> Layout:
        """Where elements are that hold so many neighbours along K of the right operand each."""
        whole = self.right()
        lists = ((_together(mode, together) for mode in modes) for modes in (whole.registers, whole.lanes, whole.warps))
        return Layout((self.k // together, self.n), *map(tuple, lists))

    def grouped(self, group: int) -> Layout:
        """Where that is of which `group` neighbours along K of the right operand, a power of two, share an element."""
        whole = self.right()
        rows = -(-self.k // group)
        lists = [
            [part for mode in modes for part in _shared(mode, group)]
            for modes in (whole.registers, whole.lanes, whole.warps)
        ]
        registers = [mode for mode in lists[0] if mode.axis is not None]
        return Layout((rows, self.n), _real(registers), _real(lists[1]), _real(lists[2]))

    def product(self) -> Layout:
        if self.apart:
            registers, lanes = _real([Mode(self.tiles_n, 2, COLUMNS)]), (Mode(LANES, 0), Mode(8, 2))
            warps = self.warps.modes((1, ROWS), (2, COLUMNS * self.tiles_n), (0, LANES))
            return Layout((LANES * self.warps.k, self.m, self.n), registers, lanes, warps)
        first = 1 if self.warps.k > 1 else 0
        rows, columns = first, first + 1
        across, down = (rows, columns) if self.turned else (columns, rows)
        registers = (
            Mode(2, across),
            Mode(self.halves, rows, HALF),
            Mode(self.tiles_n, columns, COLUMNS),
            Mode(self.tiles_m, rows, ROWS),
        )
        lanes = (Mode(LANES, across, 2), Mode(8, down))
        warps = self.warps.modes((rows, ROWS * self.tiles_m), (columns, COLUMNS * self.tiles_n), (0, 1))
        shape = (self.warps.k, self.m, self.n) if first else (self.m, self.n)
        return Layout(shape, _real(registers), lanes, warps)


def _together(mode: Mode, count: int) -> Mode:
    if mode.axis != 0:
        return mode
    return Mode(mode.size // count, 0) if mode.step == 1 else Mode(mode.size, 0, mode.step // count)


def _shared(mode: Mode, group: int) -> list[Mode]:
    """A mode along K as one along groups: threads that have the same group repeat it."""
    if mode.axis != 0:
        return [mode]
    alone = min(mode.size, max(1, group // mode.step))
    return [Mode(alone, None), Mode(mode.size // alone, 0, max(1, mode.step // group))]


def _real(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    return tuple(mode for mode in modes if mode.size > 1)
