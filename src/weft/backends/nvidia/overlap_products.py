"""How products of what was made of other products overlap with what is made: two blocks beside each other where their
tiles are so small that both fit, else one block that does a product a turn later (`delay_products`), and in which the
consumers take turns."""

from __future__ import annotations

from xdsl.ir import Block

from weft.backends.nvidia.asynchronous import FinishOp, TurnOp, WgmmaOp
from weft.backends.nvidia.delay_products import delay_products
from weft.backends.nvidia.dialect import RESIDENT, set_integer
from weft.backends.nvidia.hoist_products import hoist_products, registers_of
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

_MOST_HELD = 64
"""Registers of products that a thread may hold where there are two blocks."""


def overlap_products(kernel: tile.KernelOp) -> None:
    """Rewrite a kernel in place, or say how many blocks are to fit."""
    if MemoryGroups.of_kernel(kernel).written:
        hoist_products(kernel)
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    held = max(
        (sum(registers_of(op) for op in loop.block.ops if isinstance(op, tile.DotOp)) for loop in loops), default=0
    )
    several = any(sum(isinstance(op, tile.DotOp) for op in loop.block.ops) > 1 for loop in loops)
    if several and held <= _MOST_HELD and MemoryGroups.of_kernel(kernel).written:
        set_integer(kernel, RESIDENT, 2)
    else:
        delay_products(kernel)


def take_turns(block: Block) -> None:
    """Let consumers begin several products, between which they have other work to do, one consumer after the other."""
    ops = list(block.ops)
    first = next((number for number, op in enumerate(ops) if isinstance(op, FinishOp)), len(ops))
    begun = [op for op in ops[:first] if isinstance(op, WgmmaOp)]
    if len(begun) > 1:
        block.insert_op_before(TurnOp.make("await"), begun[0])
        block.insert_op_after(TurnOp.make("pass"), begun[-1])
