"""Shares the blocks of a result out to the planes of a stack, so that all planes end at about the same time.

A block is computed by one plane. Of the last product, blocks that are left when no plane has room for a whole one are
cut along K (split-K): several planes have passes of theirs. All but one of these write their sums, of 32 bits, and the
vector unit adds them to those of the last:

    plane 0   ██████ ██████ ▒▒        ▒ passes of one block
    plane 1   ██████ ██████ ▒▒
    plane 2   ██████ ██████ ▒▒▒
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.spatial.isa import Function
from weft.spatial.mapping.layers import Job, Node, Operand, Pass, Stream


@dataclass(frozen=True)
class Share:
    """Passes of a block that a plane has: the share of this number of so many; the last has the result."""

    plane: int
    block: int
    passes: tuple[Pass, ...]
    number: int = 0
    of: int = 1

    @property
    def is_last(self) -> bool:
        return self.number == self.of - 1


def share_out(jobs: Sequence[Job], loads: Sequence[int], interval: int, cut: bool) -> list[Share]:
    """The shares of planes that are busy until some cycles, where a pass takes an interval; `cut`, blocks are cut."""
    ends = list(loads)
    even = -(-(sum(ends) + sum(len(job.passes) for job in jobs) * interval) // len(ends))
    found: list[Share] = []
    for job in jobs:
        plane = min(range(len(ends)), key=lambda each: ends[each])
        if not cut or ends[plane] + len(job.passes) * interval <= even + interval:
            found.append(Share(plane, job.block, job.passes))
            ends[plane] += len(job.passes) * interval
        else:
            found += _pieces(job, ends, interval, even)
    return found


def _pieces(job: Job, ends: list[int], interval: int, even: int) -> list[Share]:
    """A block on several planes, each until all are even; the one with most room comes last."""
    left = list(job.passes)
    pieces: list[Share] = []
    for plane in sorted(range(len(ends)), key=lambda each: ends[each]):
        count = min(len(left), -(-(even - ends[plane]) // interval))
        if count > 0:
            pieces.append(Share(plane, job.block, tuple(left[-count:])))
            del left[-count:]
            ends[plane] += count * interval
    if left:
        first = pieces[0]
        pieces[0] = replace(first, passes=(*left, *first.passes))
        ends[first.plane] += len(left) * interval
    pieces.reverse()
    return [replace(piece, number=number, of=len(pieces)) for number, piece in enumerate(pieces)]


def summed(root: Node, others: Sequence[Stream]) -> Node:
    """An expression of a product some sums of which were written before: these are added to it first."""
    product: Operand = "product"
    for other in others:
        product = Node(Function.ADD_I32, (product, other))
    return _replaced(root, product)


def _replaced(node: Node, product: Operand) -> Node:
    def other(operand: Operand) -> Operand:
        if isinstance(operand, Node):
            return _replaced(operand, product)
        return product if operand == "product" else operand

    return Node(node.function, tuple(other(each) for each in node.operands))
