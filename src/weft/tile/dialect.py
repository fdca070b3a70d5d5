"""The tile dialect: a kernel is a grid of programs; a program loads tiles, computes on them and stores tiles.

A tile value has a static shape, its capacity, and extents that may be smaller at run time: a load near the edge of a
tensor brings the elements that exist, elementwise ops keep to what all operands have, reductions combine what is there
and stores write it. So edges need no masks. Sizes of 1 broadcast. In NumPy's words: a tile is a slice.

Index arithmetic lives in attributes: `sizes` hold expressions over `d0, d1, ...`, which stand for the op's index
operands (program numbers, loop variables and symbolic sizes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects import builtin
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator
from xdsl.utils.exceptions import VerifyException

from weft.ir.attributes import Value, to_attribute
from weft.ir.expr import symbols_of
from weft.ir.operations import WeftOp
from weft.tile.types import PointerType, Sizes, TileType, tile_type


@irdl_op_definition
class KernelOp(WeftOp):
    """A kernel. Block arguments are pointers and then sizes; `grid` says how many programs there are along each axis.

    Kernels that people write take scalars too, before the sizes.

    `serial` kernels run their programs one after the other (scatters that may write to one place twice). In `paired`
    ones, the work of programs grows or falls along the next to last axis of the grid (or the only one). With a
    `limit`, the first number of that argument's memory says how many programs there are along the last axis of the
    grid, of which it is the most that there may be. With a `counter`, programs are of different lengths, and that
    argument's memory is there to count those that were begun: one number, 0 before. With a `cluster`, so many
    neighbours are to bring operands of products for each other, on a device that has such. `persistent` ones have as
    many programs as a device should run at once, which carry what they sum up from row to row, of so many warps each,
    and `row_warps` of them one below the other; the rows of `prefetched` ones are to be brought while they compute,
    on a device that can, and those of `reread` ones to be read again behind their reductions, as threads have no room
    for them meanwhile.
    """

    name = "tile.kernel"
    sym_name = attr_def(StringAttr)
    grid = attr_def(Sizes)
    serial = opt_attr_def(builtin.UnitAttr)
    paired = opt_attr_def(builtin.UnitAttr)
    limit = opt_attr_def(IntegerAttr)
    counter = opt_attr_def(IntegerAttr)
    cluster = opt_attr_def(IntegerAttr)
    persistent = opt_attr_def(IntegerAttr)
    row_warps = opt_attr_def(IntegerAttr)
    prefetched = opt_attr_def(builtin.UnitAttr)
    reread = opt_attr_def(builtin.UnitAttr)
    symbols = opt_attr_def(ArrayAttr[StringAttr])
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove())

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def limit_pointer(self) -> BlockArgument | None:
        """The argument that says how many programs there are along the last axis."""
        return None if self.limit is None else self.block.args[self.limit.value.data]

    @property
    def counter_pointer(self) -> BlockArgument | None:
        """The argument that counts programs."""
        return None if self.counter is None else self.block.args[self.counter.value.data]

    @property
    def size_names(self) -> list[str]:
        """The names of the size arguments, as the grid uses them."""
        return [name.data for name in self.symbols] if self.symbols else []


@irdl_op_definition
class ProgramOp(WeftOp):
    """The number of this program along a grid axis."""

    name = "tile.program"
    axis = attr_def(IntegerAttr)
    out = result_def(IndexType)


@irdl_op_definition
class ReturnOp(WeftOp):
    """Ends a kernel."""

    name = "tile.return"
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ConstantOp(WeftOp):
    """A tile of one number."""

    name = "tile.constant"
    value = attr_def(Attribute)
    out = result_def(TileType)

    @classmethod
    def make(cls, value: Value, type_: TileType) -> Self:
        return cls.create(result_types=[type_], attributes={"value": to_attribute(value)})


@irdl_op_definition
class LoadOp(WeftOp):
    """The elements at `offset + sum(strides[a] * i_a)` for i_a < extents[a].

    Where known, `sides` are those of the whole that the tile is a part of, and `starts` where along them it begins.
    What is read `once`, by one program, need not stay near. With several offsets, a tile is as many pieces along
    `piece_axis`, each of which begins at its own.
    """

    name = "tile.load"
    pointer = operand_def(PointerType)
    indices = var_operand_def(IndexType)
    offset = attr_def(Sizes)
    strides = attr_def(Sizes)
    extents = attr_def(Sizes)
    sides = opt_attr_def(Sizes)
    starts = opt_attr_def(Sizes)
    once = opt_attr_def(UnitAttr)
    piece_axis = opt_attr_def(IntegerAttr)
    out = result_def(TileType)

    @property
    def pieces(self) -> int:
        return len(self.offset.data)

    def verify_(self) -> None:
        _verify_access(self, tile_type(self.out))
        if (self.pieces > 1) != (self.piece_axis is not None):
            raise VerifyException(f"{self.name}: an axis for pieces, of which there are {self.pieces}")


@irdl_op_definition
class StoreOp(WeftOp):
    """Write a tile to the places that a load with the same attributes would read.

    Where the tile has size 1 and the store has more, the one element goes to all places; `spread` holds the capacities
    of such a store. `sides` and `starts` are as in a load.
    """

    name = "tile.store"
    value = operand_def(TileType)
    pointer = operand_def(PointerType)
    indices = var_operand_def(IndexType)
    offset = attr_def(Sizes)
    strides = attr_def(Sizes)
    extents = attr_def(Sizes)
    spread = opt_attr_def(Sizes)
    sides = opt_attr_def(Sizes)
    starts = opt_attr_def(Sizes)

    def verify_(self) -> None:
        _verify_access(self, tile_type(self.value))


@irdl_op_definition
class NumberOp(WeftOp):
    """The integer at `offset`, as an index: the bound of a loop that is known only when the kernel runs.

    It is counted from `LEAST`, since no index is negative. Beyond `MOST` on both sides it is taken for that: no place
    is as far, and sums of such a number and a place stay in 32 bits.
    """

    LEAST: ClassVar[int] = -(1 << 31)
    MOST: ClassVar[int] = 1 << 30

    name = "tile.number"
    pointer = operand_def(PointerType)
    indices = var_operand_def(IndexType)
    offset = attr_def(Sizes)
    out = result_def(IndexType)


@irdl_op_definition
class PositionOp(WeftOp):
    """The integers `offset + sum(strides[a] * i_a)` for i_a < extents[a]."""

    name = "tile.position"
    indices = var_operand_def(IndexType)
    offset = attr_def(Sizes)
    strides = attr_def(Sizes)
    extents = attr_def(Sizes)
    out = result_def(TileType)

    def verify_(self) -> None:
        _verify_access(self, tile_type(self.out))


def _verify_access(op: LoadOp | StoreOp | PositionOp, type_: TileType) -> None:
    if not len(op.strides.data) == len(op.extents.data) == len(type_.sizes):
        raise VerifyException(f"{op.name}: one stride and one extent an axis of {type_}")
    names = {f"d{i}" for i in range(len(op.indices))}
    for size in (*op.offset.data, *op.strides.data, *op.extents.data):
        if not symbols_of(size) <= names:
            raise VerifyException(f"{op.name}: {size} names an index that is not an operand")


@irdl_op_definition
class GatherOp(WeftOp):
    """The elements at computed indices; where the mask is false the value is `other`, and nothing is read.

    Of an `inside` one all places may be read, whatever the mask says.
    """

    name = "tile.gather"
    pointer = operand_def(PointerType)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)
    other = attr_def(Attribute)
    inside = opt_attr_def(UnitAttr)
    out = result_def(TileType)


@irdl_op_definition
class ScatterOp(WeftOp):
    """Write a tile to computed places, element after element; `kind` assigns, or combines with what is there.

    An `unordered` one assigns, and may do so in any order.
    """

    name = "tile.scatter"
    value = operand_def(TileType)
    pointer = operand_def(PointerType)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)
    kind = attr_def(StringAttr)
    unordered = opt_attr_def(builtin.UnitAttr)


CONTRACTS, FLUSHES, ROUGH, EXACT = "contracts", "flushes", "rough", "exact"
"""On a map: its product need not be rounded before something is added to it; a result below the normal numbers may be
zero; its result may be 2 ulp away; it must be rounded to nearest."""
IMPLIED = "implied"
"""On a cast: it is the rounding of arithmetic in narrow floats, which is done in f32, and nobody wrote it."""


@irdl_op_definition
class MapOp(WeftOp):
    """A function of `weft.tile.functions`, elementwise; axes of size 1 broadcast."""

    name = "tile.map"
    args = var_operand_def(TileType)
    function = attr_def(StringAttr)
    out = result_def(TileType)


@irdl_op_definition
class ReduceOp(WeftOp):
    """Combine along `axis`, which stays with size 1. `argmax` and `argmin` give the position of the first extremum."""

    name = "tile.reduce"
    value = operand_def(TileType)
    kind = attr_def(StringAttr)
    axis = attr_def(IntegerAttr)
    out = result_def(TileType)


@irdl_op_definition
class AddExponentialsOp(WeftOp):
    """Take floats into running pairs of a maximum m and of the sum of exp(x - m) over all x there were.

    Where m is infinite the sum is that of exp(x). Each element goes to one of the pairs; which is the machine's choice.
    """

    name = "tile.add_exponentials"
    largest = operand_def(TileType)
    total = operand_def(TileType)
    value = operand_def(TileType)
    larger = result_def(TileType)
    sum = result_def(TileType)


@irdl_op_definition
class DotOp(WeftOp):
    """`a @ b` on [M, K] and [K, N] tiles, plus the accumulator where one is given.

    b may be in panels, [N / NR, K, NR]: column n stands in panel n // NR; or [N / NR, K / 4, NR, 4] with four
    neighbours along K together, where a of i16 is at most 127 * 257. Narrow operands are widened to the result's type
    first.
    """

    name = "tile.dot"
    a = operand_def(TileType)
    b = operand_def(TileType)
    accumulator = opt_operand_def(TileType)
    out = result_def(TileType)


@irdl_op_definition
class DequantizeOp(WeftOp):
    """The weights [K, N] that a tile of codes [K * bits / 8, N] stands for, with factors and zeros [K / group, N].

    They are those of `graph.dequantize`, rounded to `dtype`; groups larger than the tile have one factor.
    """

    name = "tile.dequantize"
    codes = operand_def(TileType)
    factors = var_operand_def(TileType)
    form = attr_def(StringAttr)
    group = attr_def(IntegerAttr)
    dtype = attr_def(Attribute)
    out = result_def(TileType)


@irdl_op_definition
class SortOp(WeftOp):
    """Sort `count` keys from `offset` on in place, and write to the same places where each of them stood (0, 1, ...).

    Equal keys stay in order; NaN is the greatest. Only the first `first` keys and positions have to be right, the
    others are arbitrary. The scratch arrays are used at the same places.
    """

    name = "tile.sort"
    keys = operand_def(PointerType)
    positions = operand_def(PointerType)
    scratch_keys = operand_def(PointerType)
    scratch_positions = operand_def(PointerType)
    indices = var_operand_def(IndexType)
    offset = attr_def(Sizes)
    count = attr_def(Sizes)
    first = attr_def(Sizes)
    descending = attr_def(Attribute)


@irdl_op_definition
class ForOp(WeftOp):
    """`for i in range(lower, upper, step)` with tiles carried from iteration to iteration.

    The block's arguments are i and the carried tiles; it ends in `tile.yield`.
    """

    name = "tile.for"
    indices = var_operand_def(IndexType)
    initial = var_operand_def(TileType)
    bounds = attr_def(Sizes)
    outs = var_result_def(TileType)
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(),)

    @classmethod
    def make(cls, bounds: Sizes, indices: Sequence[SSAValue], initial: Sequence[SSAValue]) -> Self:
        block = Block(arg_types=[builtin.IndexType(), *(value.type for value in initial)])
        return cls.build(
            operands=[list(indices), list(initial)],
            result_types=[[value.type for value in initial]],
            attributes={"bounds": bounds},
            regions=[Region(block)],
        )

    @property
    def block(self) -> Block:
        return self.body.block


@irdl_op_definition
class YieldOp(WeftOp):
    """Ends a loop's turn with the tiles for the next."""

    name = "tile.yield"
    args = var_operand_def(TileType)
    traits = traits_def(IsTerminator())


OPS: list[type[IRDLOperation]] = [
    KernelOp,
    ProgramOp,
    NumberOp,
    ReturnOp,
    ConstantOp,
    LoadOp,
    StoreOp,
    PositionOp,
    GatherOp,
    ScatterOp,
    MapOp,
    ReduceOp,
    AddExponentialsOp,
    DotOp,
    DequantizeOp,
    SortOp,
    ForOp,
    YieldOp,
]
