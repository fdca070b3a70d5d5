"""How products of what was made of other products overlap with what is made: two blocks beside each other where their
tiles are so small that both fit, each with one warp group for all rows where a turn has many products, else one block
that does a product a turn later (`delay_products`), and in which the consumers take turns."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block

from weft.backends.nvidia.asynchronous import FinishOp, TurnOp, WgmmaOp
from weft.backends.nvidia.delay_products import delay_products
from weft.backends.nvidia.dialect import CONSUMERS, RESIDENT, set_integer
from weft.backends.nvidia.hoist_products import hoist_products, registers_of
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

_MOST_HELD = 64
"""Registers of products of 64 rows that a thread may hold where there are two blocks."""
_MANY, _MOST_OF_MANY, _TALL = 3, 96, 128
"""Products of a turn, so many registers of them, and rows, for which one warp group has less to wait for than two."""


def overlap_products(kernel: tile.KernelOp) -> None:
    """Rewrite a kernel in place, or say how many blocks are to fit."""
    written = MemoryGroups.of_kernel(kernel).written
    if written:
        hoist_products(kernel)
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    dots = [[op for op in loop.block.ops if isinstance(op, tile.DotOp)] for loop in loops]
    most = max(map(len, dots), default=0)
    held = max((sum(map(registers_of, each)) for each in dots), default=0)
    if written and most > 1 and held <= _MOST_HELD:
        set_integer(kernel, RESIDENT, 2)
    elif written and most >= _MANY and held <= _MOST_OF_MANY and _rows(dots) == {_TALL}:
        set_integer(kernel, RESIDENT, 2)
        set_integer(kernel, CONSUMERS, 1)
    else:
        delay_products(kernel)


def _rows(dots: Sequence[Sequence[tile.DotOp]]) -> set[int]:
    return {tile.tile_type(dot.out).sizes[0] for each in dots for dot in each}


def take_turns(block: Block) -> None:
    """Let consumers begin several products, between which they have other work to do, one consumer after the other."""
    ops = list(block.ops)
    first = next((number for number, op in enumerate(ops) if isinstance(op, FinishOp)), len(ops))
    begun = [op for op in ops[:first] if isinstance(op, WgmmaOp)]
    if len(begun) > 1:
        block.insert_op_before(TurnOp.make("await"), begun[0])
        block.insert_op_after(TurnOp.make("pass"), begun[-1])
