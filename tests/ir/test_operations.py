"""Weft's ops are made, walked, cloned and asked for their operands as xDSL's are, if quicker."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation

from weft.ir.types import Tensor, f32, i64
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.tile.pointer_ops import IndexOp
from weft.tile.types import TileType


@pytest.fixture(name="function")
def grouped_function() -> FuncOp:
    """A softmax and a sum, in groups: ops inside others, of which some are read several times."""
    made = FuncOp.make("f", {"x": Tensor(f32, (4, 8)), "y": Tensor(f32, (4, 8))})
    b = GraphBuilder(made.block)
    x, y = made.block.args
    e = b.exp(b.sub(x, b.max(x, dims=(1,), keep=True)))
    made.block.add_op(ReturnOp.make([b.mul(e, b.add(e, y)), b.sum(y, dims=(0,), keep=False)]))
    GroupIntoKernels().apply(Context(), module_of(made))
    made.detach()
    return made


def numbered(op: Operation) -> list[object]:
    """All that there is of an op: kinds, attributes, names, who uses each value in which order."""
    places = {each: place for place, each in enumerate(op.walk())}
    values: dict[SSAValue, int] = {}
    for each in places:
        for inner in (value for region in each.regions for block in region.blocks for value in block.args):
            values[inner] = len(values)
        for result in each.results:
            values[result] = len(values)
    ops = [(type(each), [values[operand] for operand in each.operands], each.attributes) for each in places]
    uses = {value: [(places[use.operation], use.index) for use in value.uses] for value in values}
    return [*ops, *((value.name_hint, value.type, uses[value]) for value in values)]


def test_a_clone_is_what_xdsl_makes(function: FuncOp) -> None:
    function.block.args[0].name_hint = "first"
    assert numbered(function.clone()) == numbered(IRDLOperation.clone(function))
    assert function.clone().is_structurally_equivalent(function)
    function.clone().verify()


def test_a_clone_reads_values_from_outside_and_such_as_stand_later(function: FuncOp) -> None:
    group = next(op for op in function.block.ops if op.regions)
    outside = [operand for op in group.walk() for operand in op.operands if operand in function.block.args]
    assert outside
    copy = group.clone()
    assert [operand for op in copy.walk() for operand in op.operands if operand in function.block.args] == outside
    clone = function.clone()
    first, *_, last = [op for op in clone.block.ops if op.regions]
    last.detach()
    clone.block.insert_op_before(last, first)  # which reads what stands after it now
    assert numbered(clone.clone())[: len(list(clone.walk()))] == numbered(clone)[: len(list(clone.walk()))]


def test_a_walk_is_xdsls_and_lets_ops_be_erased(function: FuncOp) -> None:
    assert list(function.walk()) == list(IRDLOperation.walk(function))
    assert list(function.walk(reverse=True)) == list(IRDLOperation.walk(function, reverse=True))
    for op in function.walk():
        if op.parent is function.block and not op.regions:
            op.detach()
            op.erase(safe_erase=False)
    assert all(op.regions for op in function.block.ops)


def test_an_operand_is_put_in_place_of_another(function: FuncOp) -> None:
    x, y = function.block.args
    op = next(op for op in function.walk() if x in op.operands)
    place = list(op.operands).index(x)
    op.operands[place] = y
    assert op.operands[place] is y
    assert (op, place) in [(use.operation, use.index) for use in y.uses]
    assert (op, place) not in [(use.operation, use.index) for use in x.uses]
    op.operands = [x] * len(op.operands)
    assert list(op.operands) == [x] * len(op.operands)
    assert all(use.operation is not op for use in y.uses)


def test_what_a_definition_names_is_found_by_its_place() -> None:
    (value,) = Block(arg_types=[TileType.of((), i64)]).args
    op = IndexOp.create(operands=[value], result_types=[IndexType()])
    assert (op.value, op.out) == (value, op.results[0])
    assert isinstance(vars(IndexOp)["value"], property)
    with pytest.raises(AttributeError):
        op.value = value  # type: ignore[misc]
    returned = ReturnOp.create(operands=[value, value])
    assert tuple(returned.args) == (value, value)
