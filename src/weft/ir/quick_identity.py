"""xDSL's values, ops and blocks as keys, in `isinstance` and in loops, in a fraction of the calls.

Two values, ops, blocks or regions are equal if they are one object, and a class is what they were made of: so says
xDSL, in methods of its own, and by a register of abstract classes in which there are no others. Python's own answers
are the same, and compiling a model asks some hundred thousand times. It also goes through the ops of blocks as often:
xDSL makes two calls for each, and goes through them once more where a list is made of them, to know how many there are.
"""

# What xDSL's nodes are all made of has a private name.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator
from typing import Any

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.core import BlockOps, ErasedSSAValue, _IRNode


class PlainClass(ABCMeta):
    """The class of abstract classes of which `isinstance` asks no register of subclasses, in half of the time."""

    __instancecheck__ = type.__instancecheck__


def _ops(of: BlockOps) -> Iterator[Operation]:
    op = of.block._first_op
    while op is not None:
        following = op._next_op  # before an op is handed out, which may be erased then
        yield op
        op = following


def _count(of: BlockOps) -> int:
    count, op = 0, of.block._first_op
    while op is not None:
        count, op = count + 1, op._next_op
    return count


def _answer_quickly() -> None:
    """Let Python itself hash and compare xDSL's nodes and values, and say which values are instances of what.

    Ops and blocks keep xDSL's metaclass: whoever derives from them may have a metaclass of his own.
    """
    ops_of_a_block: Any = BlockOps
    ops_of_a_block.__iter__, ops_of_a_block.__len__ = _ops, _count
    by_identity: Any
    for by_identity in (SSAValue, _IRNode):
        by_identity.__hash__, by_identity.__eq__ = object.__hash__, object.__eq__
    abstract: Any
    for abstract in (SSAValue, OpResult, BlockArgument, ErasedSSAValue):
        abstract.__class__ = PlainClass


_answer_quickly()
