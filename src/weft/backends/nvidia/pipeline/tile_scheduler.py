"""The tile scheduler: a persistent block walks the programs of a kernel, from its own number in steps of all blocks.

Where programs at one end of an axis take longer than at the other, a block has one from each in turn. Otherwise the
order keeps what neighbours share in the L2 cache: a few blocks of rows are walked through all columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from weft.backends.nvidia.ir.op_facts import depends_on_program
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp
from weft.backends.nvidia.pipeline.multicast_operands import Multicast
from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum, mod, product, substitute, symbol, symbols_of
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

GROUP = 8
"""Neighbouring blocks of rows that are walked together, so that they share columns while these are near."""
_OUTSIDE = 1 << 30
"""A coordinate that no tensor has."""


@dataclass(frozen=True)
class ThreadBlockCluster:
    """Blocks that walk neighbouring programs in step, and the number of this one among them."""

    sharing: Multicast
    rank: SSAValue


@dataclass(frozen=True)
class TileScheduler:
    """A loop over a block's programs, and the program's number along each axis of the grid.

    `first` and `count` are the block's number and how many there are, or those of its cluster.
    """

    kernel: tile.KernelOp
    first: SSAValue
    count: SSAValue
    loop: tile.ForOp
    axes: tuple[SSAValue, ...]
    limit: SSAValue | None = None
    """How many programs there are along the last axis, if memory says so."""
    cluster: ThreadBlockCluster | None = None

    @classmethod
    def of(
        cls,
        kernel: tile.KernelOp,
        first: SSAValue,
        count: SSAValue,
        limit: SSAValue | None = None,
        cluster: ThreadBlockCluster | None = None,
    ) -> TileScheduler:
        bounds = tile.Sizes((symbol("d0"), _upper(kernel, cluster), symbol("d1")))
        loop = tile.ForOp.make(bounds, [first, count, *_sizes(kernel, limit)], [])
        numbers = _numbered(kernel, loop.block.args[0], count, limit, cluster)
        loop.block.add_ops(numbers)
        return cls(kernel, first, count, loop, tuple(op.out for op in numbers), limit, cluster)

    @classmethod
    def walked_by(cls, kernel: tile.KernelOp, loop: tile.ForOp, blocks: int = 1) -> TileScheduler:
        """What `of` has made for a loop, in a cluster of so many blocks."""
        first, count, *others = loop.indices
        limit = others[len(kernel.size_names)] if kernel.limit is not None else None
        numbers = [op for op in loop.block.ops if isinstance(op, AffineApplyOp)][: len(kernel.grid.data)]
        cluster = None
        if blocks > 1:
            rank = numbers[0].indices[-1]
            name = f"d{len(numbers[0].indices) - 1}"
            axis = next(axis for axis, op in enumerate(numbers) if name in symbols_of(op.value.data[0]))
            cluster = ThreadBlockCluster(Multicast(blocks, axis), rank)
        return cls(kernel, first, count, loop, tuple(op.out for op in numbers), limit, cluster)

    def numbers(self) -> dict[SSAValue, SSAValue]:
        """What stands in the loop for the kernel's program numbers."""
        found = [op for op in self.kernel.block.ops if isinstance(op, tile.ProgramOp)]
        return {op.out: self.axes[op.axis.value.data] for op in found}

    def before(self, number: SSAValue) -> tuple[list[AffineApplyOp], dict[SSAValue, SSAValue], SSAValue]:
        """Ops that find the program before one: what stands for its numbers, and what is added to a coordinate.

        That leads outside of all tensors if there is no program before.
        """
        place, step = symbol("d0"), symbol("d1")
        outside = (1 - minimum(floordiv(place, step), 1)) * _OUTSIDE
        made = [AffineApplyOp.make(tile.Sizes((s,)), [number, self.count]) for s in (maximum(place - step, 0), outside)]
        numbers = _numbered(self.kernel, made[0].out, self.count, self.limit, self.cluster)
        places: dict[SSAValue, SSAValue] = dict(zip(self.axes, (op.out for op in numbers), strict=True))
        return [*made, *numbers], places, made[1].out

    def end(self) -> AffineApplyOp:
        """The number that would follow the last program's."""
        first, step = symbol("d0"), symbol("d1")
        turns = ceildiv(maximum(_upper(self.kernel, self.cluster) - first, 0), step)
        sizes = _sizes(self.kernel, self.limit)
        return AffineApplyOp.make(tile.Sizes((first + turns * step,)), [self.first, self.count, *sizes])


def _sizes(kernel: tile.KernelOp, limit: SSAValue | None) -> list[SSAValue]:
    sizes = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    return [*sizes, *([] if limit is None else [limit])]


def _grid(kernel: tile.KernelOp, cluster: ThreadBlockCluster | None = None) -> list[Size]:
    """The sides of the grid, with d2, d3, … for the kernel's sizes, and the next one for its limit.

    A cluster's programs are one.
    """
    renamed: dict[str, Size] = {name: symbol(f"d{i + 2}") for i, name in enumerate(kernel.size_names)}
    grid = [substitute(size, renamed) for size in kernel.grid.data]
    if cluster is not None:
        grid[cluster.sharing.axis] = floordiv(grid[cluster.sharing.axis], cluster.sharing.blocks)
    return grid if kernel.limit is None else [*grid[:-1], symbol(f"d{len(renamed) + 2}")]


def _numbered(
    kernel: tile.KernelOp, number: SSAValue, count: SSAValue, limit: SSAValue | None, cluster: ThreadBlockCluster | None
) -> list[AffineApplyOp]:
    """Each axis's number of a program, from the program's. Where there is none, it may be any."""
    grid = [size if size != 0 else 1 for size in _grid(kernel, cluster)]
    if kernel.paired:
        values = _paired_numbers(grid)
    else:
        values = _in_order(grid) if MemoryGroups.of_kernel(kernel).written else _numbers(grid)
    operands = [number, count, *_sizes(kernel, limit)]
    if cluster is not None:
        sharing, rank = cluster.sharing, symbol(f"d{len(operands)}")
        values[sharing.axis] = values[sharing.axis] * sharing.blocks + rank
        operands.append(cluster.rank)
    return [AffineApplyOp.make(tile.Sizes((value,)), operands) for value in values]


def _upper(kernel: tile.KernelOp, cluster: ThreadBlockCluster | None) -> Size:
    """Where the numbers of a block end that begin with d0, in steps of d1."""
    programs = product(_grid(kernel, cluster))
    if not kernel.paired:
        return programs
    outer, (rows, columns) = _outer_and_last(_grid(kernel))
    pairs = product(outer) * ceildiv(rows * columns, 2)
    return symbol("d0") + 2 * symbol("d1") * ceildiv(maximum(pairs - symbol("d0"), 0), symbol("d1"))


def _outer_and_last(grid: list[Size]) -> tuple[list[Size], tuple[Size, Size]]:
    return (grid[:-2], (grid[-2], grid[-1])) if len(grid) > 1 else ([], (grid[0], 1))


def _paired_numbers(grid: list[Size]) -> list[Size]:
    """The same where programs from both ends of the next to last axis are pairs: a block has both, in turn.

    In a group of `GROUP` along the last axis, the first program and the last one are a pair, and so on inwards.
    """
    turn, block = floordiv(symbol("d0"), symbol("d1")), mod(symbol("d0"), symbol("d1"))
    rest = floordiv(turn, 2) * symbol("d1") + block
    outer, (rows, columns) = _outer_and_last(grid)
    each = ceildiv(rows * columns, 2)
    numbers: list[Size] = []
    for position in range(len(outer)):
        below = product(outer[position + 1 :]) * each
        numbers.append(floordiv(rest, below))
        rest = mod(rest, below)
    top = floordiv(rest, rows * (GROUP // 2)) * GROUP
    inside = mod(rest, rows * (GROUP // 2))
    height = minimum(GROUP, columns - top)
    place = inside + mod(turn, 2) * (rows * height - 1 - 2 * inside)
    return [*numbers, floordiv(place, height), top + mod(place, height)][: len(grid)]


def _in_order(grid: list[Size]) -> list[Size]:
    """The numbers of a program where its author has chosen the order: the last axis is the fastest."""
    numbers: list[Size] = []
    rest: Size = symbol("d0")
    for position in range(1, len(grid)):
        below = product(grid[position:])
        numbers.append(floordiv(rest, below))
        rest = mod(rest, below)
    return [*numbers, rest]


def _numbers(grid: list[Size]) -> list[Size]:
    """Each axis's number of a program in terms of the program's, d0.

    The last two axes are walked in groups of `GROUP` along the last one, through all of the other.
    """
    if len(grid) < 2:
        return _in_order(grid)
    columns, rows = grid[-2:]
    *numbers, rest = _in_order([*grid[:-2], columns * rows])
    top = floordiv(rest, columns * GROUP) * GROUP
    inside = mod(rest, columns * GROUP)
    whole = isinstance(rows, int) and rows % GROUP == 0
    height = GROUP if whole else minimum(GROUP, rows - top)
    return [*numbers, floordiv(inside, height), top + mod(inside, height)]


_MANY = 64
"""Programs of each multiprocessor from which on long and short ones even out."""


def worth_dynamic(kernel: tile.KernelOp, multiprocessors: int, resident: int = 1) -> bool:
    """Whether each program is better a block of its own, which the next free multiprocessor takes.

    That costs what a block does before its first dot, but few programs of unequal length would not even out; pairs
    of them are of one length, and those that are counted are drawn. Where several blocks are `resident` one does it
    while another multiplies. In kernels that people write, neighbours read the same, and stay together so.
    """
    count = product(kernel.grid.data)
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    unequal = any(_depends_on_program(loop) for loop in loops)
    few = isinstance(count, int) and multiprocessors < count < _MANY * multiprocessors
    if MemoryGroups.of_kernel(kernel).written:
        return unequal or resident > 1
    return unequal and not kernel.paired and kernel.counter is None and (few or resident > 1)


def _depends_on_program(loop: tile.ForOp) -> bool:
    """Whether how often a loop turns is different in different programs."""
    return depends_on_program(loop.indices)
