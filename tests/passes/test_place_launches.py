"""A kernel of the user's writes over an operand only where nobody needs that, and reads it as it was told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from weft.errors import LoweringError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.types import Tensor, element_type, f32
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, LaunchOp, ReturnOp
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.place_launches import PlaceLaunches
from weft.tile import dialect as tile
from weft.tile.text import parse_program, print_program

TYPE = Tensor(f32, (4, 6))


def kernel() -> tile.KernelOp:
    block = Block(arg_types=[tile.PointerType(element_type(f32))])
    block.add_op(tile.ReturnOp.create())
    attributes = {"sym_name": StringAttr("fill"), "grid": tile.Sizes((1,)), "symbols": ArrayAttr[StringAttr]([])}
    return tile.KernelOp.create(attributes=attributes, regions=[Region(block)])


def launch(b: GraphBuilder, operand: SSAValue, strides: Sequence[int] | None = None) -> SSAValue:
    op = LaunchOp.make(kernel(), [operand], [TYPE], [("result", 0)], [0], (1, 1, 1))
    if strides is not None:
        op.attributes["arg_strides"] = op.attributes["result_strides"] = to_attribute((tuple(strides),))
    return b.insert(op).results[0]


def placed(function: FuncOp) -> list[Operation]:
    module = ModuleOp([function])
    for each in (GroupIntoKernels(), PlaceLaunches()):
        each.apply(Context(), module)
    module.verify()
    assert print_program(parse_program(print_program(module))) == print_program(module)
    return list(function.block.ops)


def function_with(returned: str, strides: Sequence[int] | None = None, replaced: bool = False) -> FuncOp:
    function = FuncOp.make("f", {"x": TYPE})
    b = GraphBuilder(function.block)
    x = function.block.args[0]
    value = x if "argument" in returned else b.add(x, x)
    new = launch(b, value, strides)
    b.insert(ReturnOp.make([new, value] if "both" in returned else [new]))
    if replaced:
        function.attributes["replaced"] = to_attribute(((0, 0),))
    return function


def test_a_temporary_that_nobody_else_reads_is_written_over() -> None:
    group, launched, _ = placed(function_with("temporary"))
    assert isinstance(group, GroupOp) and launched.operands[0] is group.results[0]


def test_a_value_that_is_needed_again_is_copied() -> None:
    ops = placed(function_with("both"))
    assert [type(op) for op in ops] == [GroupOp, GroupOp, LaunchOp, ReturnOp]
    assert ops[2].operands[0] is ops[1].results[0] and ops[1].operands[0] is ops[0].results[0]


@pytest.mark.parametrize(("replaced", "copies"), [(True, 0), (False, 1)])
def test_an_argument_is_written_over_if_the_result_replaces_it(replaced: bool, copies: int) -> None:
    ops = placed(function_with("argument", replaced=replaced))
    assert sum(isinstance(op, GroupOp) for op in ops) == copies


def test_other_strides_take_a_copy() -> None:
    function = function_with("argument", strides=(1, 4), replaced=True)
    copy, launched, _ = placed(function)[:3]
    assert isinstance(copy, GroupOp) and launched.operands[0] is copy.results[0]
    assert from_attribute(copy.attributes["result_strides"]) == ((1, 4),)


def test_strides_with_gaps_are_refused() -> None:
    with pytest.raises(LoweringError, match="gaps"):
        placed(function_with("argument", strides=(12, 1)))
