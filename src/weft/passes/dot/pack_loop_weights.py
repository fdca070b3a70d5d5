"""Pack the weights of a loop's matmuls before its turns: what every turn reads is worth bringing into order once.

Constants are packed when a program is loaded. Weights that a call is given, and that a loop captures, are packed in
every call: a copy into panels takes no longer than turning a matrix round, and much less than that where a power of two
lies between the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import DType, bf16, f32, f64, tensor_of
from weft.ops.base import View, viewed
from weft.ops.control import LoopOp, functions_run
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot
from weft.ops.movement import Copy
from weft.passes.grouping.build_groups import PACKED_BEFORE
from weft.passes.simplify.constant_values import constant_arguments

_FEW_ROWS = 512
"""With at most so many rows, what a library takes to pack weights in every turn is more than it gains."""
_ORDERED, _MANY_ROWS = 32, 8
"""Rows of all turns that gain what it takes to bring weights into order, and the most that count in one turn."""


@dataclass(frozen=True)
class PackLoopWeights(ModulePass):
    """%t = graph.copy (graph.permute %w)           graph.loop %h, %w …
    graph.loop %h, %t …                       →    graph.func @f_loop0(%h, %w) {
    graph.func @f_loop0(%h, %t) {                    %t = graph.permute %w
      %y = graph.dot %h, %t                           %y = graph.dot %h, %t {weft.packed_before}

    Matmuls of so few rows are taken as with constants; a copy that was made for them alone is left out. So it is where
    turns are too few to gain what any order takes: they read the weights where these lie.
    """

    name: ClassVar[str] = "pack_loop_weights"

    matrix_tiles: bool = False
    """Whether generated kernels multiply bf16 in matrix tiles of a processor."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            for runner in function.block.ops if isinstance(function, FuncOp) else ():
                if isinstance(runner, LoopOp):
                    _pack(runner, (f32, f64, bf16) if self.matrix_tiles else (f32, f64))


def _pack(loop: LoopOp, dtypes: Sequence[DType]) -> None:
    (body,) = functions_run(loop)
    first = len(body.block.args) - len(loop.captures)
    constants = set(constant_arguments(body))
    for number, value in enumerate(loop.captures):
        argument = body.block.args[first + number]
        dots = [dot for dot in body.block.ops if isinstance(dot, Dot) and viewed(dot.operands[1]) is argument]
        if argument in constants or not dots:
            continue
        copied = _copied_for_one(value) if _is_read_by(argument, dots) else None
        if copied is not None and _are_few_turns(loop, dots):
            _capture(loop, body, argument, copied)
            continue
        known = not loop.conditional and isinstance(loop.trip_count, int)
        unordered = copied is None and (not known or _are_few_turns(loop, dots))
        if unordered or not all(_is_worth(dot, dtypes) for dot in dots):
            continue
        for dot in dots:
            dot.attributes[PACKED_BEFORE] = UnitAttr()
        if copied is not None:
            _capture(loop, body, argument, copied)


def _is_worth(dot: Dot, dtypes: Sequence[DType]) -> bool:
    """Whether a kernel with packed weights is quicker than a library; of rows without a number that is not known."""
    result, weights = tensor_of(dot.results[0].type), tensor_of(dot.operands[1].type)
    rows = result.shape[-2]
    few = isinstance(rows, int) and rows <= _FEW_ROWS
    return result.dtype in dtypes and few and weights.is_static and weights.shape[-1] != 1


def _are_few_turns(loop: LoopOp, dots: list[Dot]) -> bool:
    """Whether a loop is known to turn too seldom to gain what it takes to bring weights into order."""
    if loop.conditional or not isinstance(loop.trip_count, int):
        return False
    rows = [tensor_of(dot.results[0].type).shape[-2] for dot in dots]
    most = max(min(each, _MANY_ROWS) if isinstance(each, int) else _MANY_ROWS for each in rows)
    return loop.trip_count * most < _ORDERED


def _copied_for_one(value: SSAValue) -> SSAValue | None:
    """What a value is a copy of, if the copy was made for one reader alone."""
    if not isinstance(value, OpResult) or not isinstance(value.op, Copy) or not value.has_one_use():
        return None
    return value.op.operands[0]


def _is_read_by(argument: BlockArgument, dots: list[Dot]) -> bool:
    """Whether nothing but these matmuls reads an argument, and as it is."""
    uses = list(argument.uses)
    return len(uses) == len(dots) and all(use.operation in dots and use.index == 1 for use in uses)


def _capture(loop: LoopOp, body: FuncOp, argument: BlockArgument, value: SSAValue) -> None:
    """Let a loop read a value for what an argument of its body was: memory that is there, seen through views."""
    views: list[View] = []
    while isinstance(value, OpResult) and isinstance(value.op, View):
        views.append(value.op)
        value = value.op.operands[0]
    place = argument.index
    seen: SSAValue = body.block.insert_arg(value.type, place)
    b = GraphBuilder(body.block, before=body.block.first_op)
    for view in reversed(views):
        seen = b.insert(view.clone(value_mapper={view.operands[0]: seen})).results[0]
    argument.replace_all_uses_with(seen)
    body.block.erase_arg(argument)
    operand = place + len(loop.operands) - len(body.block.args)
    loop.operands = [*loop.operands[:operand], value, *loop.operands[operand + 1 :]]
