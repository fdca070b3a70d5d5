"""Products of a turn that wait for none of its others begin together with the first one.

%s = tile.dot %k, %q                           %s = tile.dot %k, %q
%p = powers of %s                              %g = tile.load …
%g = tile.load …                        →      %d = tile.dot %v, %g
%d = tile.dot %v, %g                           %p = powers of %s
… of %p and %d                                 … of %p and %d

The second runs while powers are raised of the first.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation, OpResult

from weft.backends.nvidia.asynchronous import IndexOp
from weft.tile import dialect as tile
from weft.tile import written

_MOST_EARLY = 32
"""Registers that a thread may hold of products which begin earlier than they stand."""
_ROWS, _THREADS = 64, 128
_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, tile.LoadOp, written.ViewOp, written.IndexOp, IndexOp)


def hoist_products(kernel: tile.KernelOp) -> None:
    """Rewrite the loops of a kernel in place."""
    for loop in [op for op in kernel.walk() if isinstance(op, tile.ForOp)]:
        dots = [op for op in loop.block.ops if isinstance(op, tile.DotOp)]
        left, last = _MOST_EARLY, next(iter(dots), None)
        for dot in dots[1:]:
            needed, held = _needed(loop.block, dot), registers_of(dot)
            if needed is None or held > left or last is None:
                continue
            left -= held
            moved = [op for op in loop.block.ops if op in needed and last.is_before_in_block(op)]
            for op in (*moved, dot):
                op.detach()
            loop.block.insert_ops_after([*moved, dot], last)
            last = dot


def registers_of(dot: tile.DotOp) -> int:
    """What a thread holds of a product, of 64 rows by a warp group."""
    return _ROWS * tile.tile_type(dot.out).sizes[1] // _THREADS


def _needed(block: Block, dot: tile.DotOp) -> set[Operation] | None:
    """The ops of a block that a product is computed by, if they can stand anywhere in it."""
    found: set[Operation] = set()
    left = list(dot.operands)
    while left:
        value = left.pop()
        if not isinstance(value, OpResult) or value.op.parent is not block or value.op in found:
            continue
        if not isinstance(value.op, _PURE):
            return None
        found.add(value.op)
        left += value.op.operands
    return found
