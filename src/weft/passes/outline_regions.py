"""Make functions of the regions of control flow, so that every pass over functions works on them, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, OpResult, Region, SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.types import i64
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp, LoopOp
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, YieldOp
from weft.passes.simplify.constant_values import constant_arguments

REGION = "region_of"
"""The attribute of a function that was a region: the function that runs it."""


@dataclass(frozen=True)
class OutlineRegions(ModulePass):
    """%y = graph.if %c, %x ({ graph.yield (graph.exp %x) },        %y = graph.if %c, %x {functions = ["f_then", …]}
                             { graph.yield %x })              →     graph.func @f_then(%x) { graph.return exp %x }
                                                                    graph.func @f_else(%x) { graph.return %x }

    A loop's number of the turn becomes one more value that it carries, if it is used. Views and cheap constants that a
    region captures are computed inside.
    """

    name: ClassVar[str] = "outline_regions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pending = [each for each in op.body.block.ops if isinstance(each, FuncOp)]
        while pending:
            function = pending.pop(0)
            for candidate in list(function.block.ops):
                if isinstance(candidate, ControlOp) and candidate.bodies:
                    made = _outlined(function, candidate, op)
                    pending += made


def _outlined(function: FuncOp, op: ControlOp, module: ModuleOp) -> list[FuncOp]:
    if isinstance(op, LoopOp):
        op = _carry_index(op)
    blocks = [region.block for region in op.bodies]
    op = _sink_captures(op, blocks)
    constants = set(constant_arguments(function))
    first = len(blocks[0].args) - len(op.captures)
    places = tuple(first + n for n, value in enumerate(op.captures) if value in constants)
    functions: list[FuncOp] = []
    taken = {each.sym_name.data for each in module.body.block.ops if isinstance(each, FuncOp)}
    for part, region in zip(("loop",) if isinstance(op, LoopOp) else ("then", "else"), list(op.bodies), strict=True):
        name = _free_name(f"{function.sym_name.data}_{part}", taken)
        block = region.block
        last = block.last_op
        assert isinstance(last, YieldOp), "verified"
        block.add_op(ReturnOp.make(list(last.operands)))
        last.detach()
        last.erase()
        region.detach_block(block)
        made = FuncOp.create(attributes={"sym_name": StringAttr(name)}, regions=[Region(block)], location=op.location)
        made.attributes[REGION] = function.sym_name
        if function.symbols is not None:
            made.symbols = function.symbols
        if places:
            made.attributes["constants"] = to_attribute(places)
        if isinstance(op, LoopOp) and op.starts:
            replaced = tuple((n, n + int(op.conditional)) for n in range(len(op.starts)))
            made.attributes["replaced"] = to_attribute(replaced)
        module.body.block.add_op(made)
        functions.append(made)
    for region in list(op.bodies):
        op.detach_region(region)
    op.functions = ArrayAttr(each.sym_name for each in functions)
    return functions


def _free_name(name: str, taken: set[str]) -> str:
    number = 0
    while (found := f"{name}{number}") in taken:
        number += 1
    taken.add(found)
    return found


def _carry_index(op: LoopOp) -> LoopOp:
    """Let a loop carry the number of its turn, last among what it carries, if it is used."""
    (region,) = op.bodies
    block = region.block
    index = block.args[0]
    if not index.uses:
        block.erase_arg(index)
        return op
    carried, conditional = len(op.starts), int(op.conditional)
    argument = block.insert_arg(index.type, 1 + carried)
    index.replace_all_uses_with(argument)
    block.erase_arg(index)
    last = block.last_op
    assert last is not None, "verified"
    b = GraphBuilder(block, op.location, before=last)
    yielded = list(last.operands)
    place = conditional + carried
    last.operands = [*yielded[:place], b.add(argument, b.full_like(argument, 1)), *yielded[place:]]
    around = _before(op)
    start = around.full(value=0, shape=(), dtype=i64)
    operands = [*op.operands[:place], start, *op.operands[place:]]
    types = [value.type for value in op.results]
    attributes = {**op.attributes, "carried": to_attribute(carried + 1)}
    made = LoopOp.create(
        operands=operands,
        result_types=[*types[:carried], index.type, *types[carried:]],
        attributes=attributes,
        regions=[op.detach_region(region)],
        location=op.location,
    )
    results = [*made.results[:carried], *made.results[carried + 1 :]]
    _replace(op, made, results)
    return made


def _sink_captures(op: ControlOp, blocks: list[Block]) -> ControlOp:
    """Compute views and cheap constants inside of the regions that capture them."""
    captures = list(op.captures)
    first, others = len(blocks[0].args) - len(captures), len(op.operands) - len(captures)
    leaves: dict[SSAValue, None] = {}
    for value in captures:
        _leaves(value, leaves)
    if list(leaves) == captures:
        return op
    for block in blocks:
        old = list(block.args[first:])
        inner: dict[SSAValue, SSAValue] = {leaf: block.insert_arg(leaf.type, len(block.args)) for leaf in leaves}
        before = block.first_op
        for value, argument in zip(captures, old, strict=True):
            argument.replace_all_uses_with(_sunk(value, inner, GraphBuilder(block, before=before)))
            block.erase_arg(argument)
    op.operands = [*op.operands[:others], *leaves]
    return op


def _leaves(value: SSAValue, found: dict[SSAValue, None]) -> None:
    if isinstance(value, OpResult) and isinstance(value.op, GraphOp) and value.op.CHEAP:
        for operand in value.op.operands:
            _leaves(operand, found)
    else:
        found[value] = None


def _sunk(value: SSAValue, inner: dict[SSAValue, SSAValue], b: GraphBuilder) -> SSAValue:
    if value not in inner:
        assert isinstance(value, OpResult)
        for operand in value.op.operands:
            _sunk(operand, inner, b)
        copy = b.insert(value.op.clone(value_mapper=inner))
        inner.update(zip(value.op.results, copy.results, strict=True))
    return inner[value]


def _before(op: ControlOp) -> GraphBuilder:
    """A builder that inserts before an op."""
    block = op.parent
    assert block is not None, "in a function"
    return GraphBuilder(block, op.location, before=op)


def _replace(op: ControlOp, made: ControlOp, results: list[OpResult]) -> None:
    _before(op).insert(made)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()
