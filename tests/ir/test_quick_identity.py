"""xDSL's values, ops and blocks are compared by identity, and are instances of what they were made as."""

from __future__ import annotations

from typing import Protocol

from xdsl.dialects import builtin
from xdsl.dialects.test import TestOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from weft.ir import quick_identity as quick_identity
from weft.ops.graph import ReturnOp


def _op() -> TestOp:
    return TestOp(result_types=[builtin.i32, builtin.i32])


def test_equal_is_the_same_object() -> None:
    one, other = _op(), _op()
    assert one == one and one != other
    assert one.results[0] == one.results[0] and one.results[0] != one.results[1]
    assert {one: 1, one.results[0]: 2}[one.results[0]] == 2


def test_instances_are_those_of_the_classes_they_were_made_of() -> None:
    op, argument = _op(), Block(arg_types=[builtin.i32]).args[0]
    assert isinstance(op, Operation) and not isinstance(op, SSAValue)
    assert isinstance(op.results[0], OpResult) and not isinstance(op.results[0], BlockArgument)
    assert isinstance(argument, BlockArgument | OpResult) and not isinstance(argument, OpResult)


def test_a_hash_asks_no_python() -> None:
    for each in (_op().results[0], Block(), ReturnOp.make([])):
        assert type(each).__hash__ is object.__hash__ and type(each).__eq__ is object.__eq__


def test_ops_of_a_block_may_be_erased_as_they_are_seen() -> None:
    block = Block([_op(), _op(), _op()])
    assert len(block.ops) == 3
    for op in block.ops:
        block.erase_op(op)
    assert len(block.ops) == 0 and list(block.ops) == []


def test_ops_may_be_derived_with_a_protocol() -> None:
    class Named(Protocol):
        label: str

    class NamedOp(Operation, Named):
        name = "test.named"

    assert issubclass(NamedOp, Operation)
