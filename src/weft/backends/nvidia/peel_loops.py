"""Split loops over blocks of columns into whole blocks and the rest behind them.

tile.for %c = 0 to 9000 by 4096 (%s) {              %a = tile.for %c = 0 to 8192 by 4096 (%s) {
  %x = tile.load %p[%c] : min(4096, 9000 - %c)        %x = tile.load %p[%c] : 4096 … }
  … }                                          →    %x = tile.load %p[8192] : 808 …

Whole blocks need no test for what exists, and of the rest its size is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.asynchronous import IndexOp
from weft.ir.expr import Size, evaluate, substitute, symbols_of
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Peeled:
    """A loop, and the ops of the turn behind it."""

    loop: tile.ForOp
    rest: list[Operation]


def peel_loops(kernel: tile.KernelOp) -> list[Peeled] | None:
    """Peel the kernel's loops in place; None where the bounds of one are not known."""
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    if not all(_is_known(op) for op in loops):
        return None
    return [_peel(op) for op in loops]


def _is_known(loop: tile.ForOp) -> bool:
    """Whether a loop has whole turns, and what exists in a turn depends on nothing but its number."""
    bounds = loop.bounds.data
    if not all(isinstance(size, int) for size in bounds):
        return False
    lower, upper, step = (int(size) for size in bounds if isinstance(size, int))
    variable = loop.block.args[0]
    extents = [(op, size) for op in loop.block.ops for size in _extents(op)]
    return upper - lower >= step and all(
        {op.operands[_first(op) + int(name[1:])] for name in symbols_of(size)} <= {variable} for op, size in extents
    )


def _peel(loop: tile.ForOp) -> Peeled:
    lower, upper, step = (int(size) for size in loop.bounds.data if isinstance(size, int))
    end = lower + (upper - lower) // step * step
    block = loop.parent_block()
    last = loop.block.last_op
    assert block is not None and last is not None
    rest: list[Operation] = []
    if end < upper:
        start = IndexOp.make(tile.Sizes((end,)), [])
        mapping: dict[SSAValue, SSAValue] = dict(zip(loop.block.args, [start.out, *loop.results], strict=True))
        results = list(loop.results)
        after: list[Operation] = [start]
        for op in loop.block.ops:
            if op is last:
                continue
            after.append(op.clone(mapping))
            _set_variable(after[-1], start.out, end)
        yielded = [mapping.get(value, value) for value in last.operands]
        for old, new in zip(results, yielded, strict=True):
            old.replace_uses_with_if(new, lambda use: use.operation not in after)
        block.insert_ops_after(after, loop)
        rest = after
    loop.attributes["bounds"] = tile.Sizes((lower, end, step))
    for op in loop.block.ops:
        if _extents(op):
            place = {f"d{number}": lower for number, _ in enumerate(op.operands)}
            op.attributes["extents"] = tile.Sizes(tuple(evaluate(size, place) for size in _extents(op)))
    return Peeled(loop, rest)


def _extents(op: Operation) -> Sequence[Size]:
    attribute = op.attributes.get("extents")
    return attribute.data if isinstance(attribute, tile.Sizes) else ()


def _first(op: Operation) -> int:
    """The operand that d0 stands for: pointers, and what is written, come before."""
    return 2 if isinstance(op, tile.StoreOp) else 1 if isinstance(op, tile.LoadOp) else 0


def _set_variable(op: Operation, variable: SSAValue, value: int) -> None:
    """Say in the expressions of an op what a variable is."""
    if not _extents(op):
        return
    known: dict[str, Size] = {
        f"d{number}": value for number, operand in enumerate(op.operands[_first(op) :]) if operand is variable
    }
    for name, attribute in op.attributes.items():
        if isinstance(attribute, tile.Sizes):
            op.attributes[name] = tile.Sizes(tuple(substitute(size, known) for size in attribute.data))
