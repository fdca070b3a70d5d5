"""Find the layers of a model again in its program: regions that compute the same, one after the other.

Their groups are equal, so that all copies share their kernels: what is found here is for reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from weft.ir.attributes import identity_of
from weft.ops.base import View, viewed
from weft.ops.graph import FuncOp, GroupOp, ReturnOp
from weft.passes.grouping.build_groups import group_key

_LEAST_OPS = 2


@dataclass(frozen=True)
class Block:
    """A region of a program that stands several times in a row: where the first starts, and what one does."""

    start: int
    copies: int
    ops: tuple[str, ...]

    @property
    def length(self) -> int:
        return len(self.ops)

    def __str__(self) -> str:
        counts = Counter(self.ops)
        return f"{self.copies} times {', '.join(f'{n} {name}' if n > 1 else name for name, n in counts.items())}"


def repeated_blocks(function: FuncOp) -> list[Block]:
    """The repeated regions of a function in order of their place, the longest taken first; none overlap.

        %1 = group @a(%x, %w0) ; %2 = dot %1, %w1
        %3 = group @a(%2, %w2) ; %4 = dot %3, %w3       →       Block(start=0, copies=3, ops=(group, dot))
        %5 = group @a(%4, %w4) ; %6 = dot %5, %w5

    Ops of two copies agree in all but their arguments' values: each reads what its counterpart reads, in its own copy
    or the one before, or something that both share.
    """
    sequence = _Sequence([op for op in function.block.ops if not isinstance(op, ReturnOp | View)])
    found: list[Block] = []
    free = [(0, len(sequence.ops))]
    while free:
        begin, end = free.pop()
        block = sequence.best_between(begin, end)
        if block is not None:
            found.append(block)
            free += [(begin, block.start), (block.start + block.copies * block.length, end)]
    return sorted(found, key=lambda block: block.start)


class _Sequence:
    """The ops of a function with what they compute and where their operands come from."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops = ops
        places = {op: place for place, op in enumerate(ops)}
        self.keys = [_key(op) for op in ops]
        self.sources = [tuple(_place(operand, places) for operand in op.operands) for op in ops]

    def best_between(self, begin: int, end: int) -> Block | None:
        """The block whose copies cover most; of those that cover the same, the shortest."""
        best: Block | None = None
        for period in range(_LEAST_OPS, (end - begin) // 2 + 1):
            run = 0
            for place in range(begin, end - period + 1):
                if place < end - period and self._agree(place, period):
                    run += 1
                    continue
                copies = run // period + 1
                if copies > 1 and (best is None or copies * period > best.copies * best.length):
                    start = place - run
                    best = Block(start, copies, tuple(map(_name, self.ops[start : start + period])))
                run = 0
        return best

    def _agree(self, place: int, period: int) -> bool:
        """Whether an op and the one a period later are counterparts."""
        if self.keys[place] != self.keys[place + period]:
            return False
        pairs = zip(self.sources[place], self.sources[place + period], strict=True)
        # The first copy may read an argument where the others read what the one before them made.
        return all(a == b or (b is not None and (a is None or b - a == period)) for a, b in pairs)


def _place(value: SSAValue, places: dict[Operation, int]) -> int | None:
    """Where a value is made, seen through views; None for what comes from outside."""
    root = viewed(value)
    return places.get(root.op) if isinstance(root, OpResult) else None


def _key(op: Operation) -> Hashable:
    if isinstance(op, GroupOp):
        return group_key(op, identity_of)
    types = (*(operand.type for operand in op.operands), *op.result_types)
    return op.name, tuple(map(identity_of, types)), tuple(map(identity_of, op.attributes.values()))


def _name(op: Operation) -> str:
    if not isinstance(op, GroupOp):
        return op.name.removeprefix("graph.")
    names = [inner.name.removeprefix("graph.") for inner in op.block.ops if not getattr(inner, "CHEAP", True)]
    return "_".join(names) or "copy"
