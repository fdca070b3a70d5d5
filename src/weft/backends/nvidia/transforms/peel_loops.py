"""Split loops over blocks of columns into one of whole blocks, and one of a single iteration for the rest.

tile.for %c = 0 to 9000 by 4096 (%s) {              %a = tile.for %c = 0 to 8192 by 4096 (%s) {
  %x = tile.load %p[%c] : min(4096, 9000 - %c)        %x = tile.load %p[%c] : 4096 … }
  … }                                          →    %b = tile.for %c = 8192 to 9000 by 4096 (%a) {
                                                      %x = tile.load %p[8192] : 808 … }

Whole blocks need no test for what exists, and of the rest its size is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from weft.ir.expr import Size, evaluate, substitute, symbols_of
from weft.tile import dialect as tile


def peel_loops(kernel: tile.KernelOp) -> list[tile.ForOp] | None:
    """Peel the kernel's loops in place; None where the bounds of one are not known."""
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    if not all(_is_known(op) for op in loops):
        return None
    return [part for loop in loops for part in _peeled(loop)]


def _is_known(loop: tile.ForOp) -> bool:
    """Whether a loop has whole turns, and what exists in an iteration depends on nothing but its number."""
    bounds = loop.bounds.data
    if not all(isinstance(size, int) for size in bounds):
        return False
    lower, upper, step = (int(size) for size in bounds if isinstance(size, int))
    variable = loop.block.args[0]
    extents = [(op, size) for op in loop.block.ops for size in _extents(op)]
    return upper - lower >= step and all(
        {op.operands[_first(op) + int(name[1:])] for name in symbols_of(size)} <= {variable} for op, size in extents
    )


def _peeled(loop: tile.ForOp) -> list[tile.ForOp]:
    lower, upper, step = (int(size) for size in loop.bounds.data if isinstance(size, int))
    end = lower + (upper - lower) // step * step
    block = loop.parent_block()
    assert block is not None
    parts = [loop]
    if end < upper:
        rest = loop.clone()
        for old, new in zip(loop.results, rest.results, strict=True):
            old.replace_all_uses_with(new)
        for number, value in enumerate(loop.results):
            rest.operands[len(rest.indices) + number] = value
        block.insert_op_after(rest, loop)
        _set_turn(rest, end, (end, upper, step), everywhere=True)
        parts.append(rest)
    _set_turn(loop, lower, (lower, end, step), everywhere=False)
    return parts


def _set_turn(loop: tile.ForOp, number: int, bounds: tuple[int, int, int], *, everywhere: bool) -> None:
    """Say what exists in an iteration, which is the same in all; `everywhere` else too where there is but one."""
    loop.attributes["bounds"] = tile.Sizes(bounds)
    for op in loop.block.ops:
        if not _extents(op):
            continue
        places = enumerate(op.operands[_first(op) :])
        known = {f"d{place}": number for place, operand in places if operand is loop.block.args[0]}
        op.attributes["extents"] = tile.Sizes(tuple(evaluate(size, known) for size in _extents(op)))
        if everywhere:
            sizes: dict[str, Size] = dict(known)
            for name, attribute in op.attributes.items():
                if isinstance(attribute, tile.Sizes):
                    op.attributes[name] = tile.Sizes(tuple(substitute(size, sizes) for size in attribute.data))


def _extents(op: Operation) -> Sequence[Size]:
    attribute = op.attributes.get("extents")
    return attribute.data if isinstance(attribute, tile.Sizes) else ()


def _first(op: Operation) -> int:
    """The operand that d0 stands for: pointers, and what is written, come before."""
    return 2 if isinstance(op, tile.StoreOp) else 1 if isinstance(op, tile.LoadOp) else 0
