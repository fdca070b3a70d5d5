"""Find the greatest and least element of a large tensor row by row: then programs share the work.

Numbers are rounded to codes by the range of their whole tensor (`DynamicQuantizeLinear`). A reduction to one number is
one program, and so is all that is fused with it: what makes the tensor, and what makes codes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.reduce import Extremum
from weft.ops.shape import Permute, Reshape

_LEAST_ELEMENTS = 1 << 14
"""Of so many elements one program takes longer than it takes to begin two more kernels."""
_LEAST_ROWS, _LEAST_ROW, _LONG_ROW = 8, 16, 64
"""Rows that are worth programs of their own, their least length, and a length that needs no further dimension."""


@dataclass(frozen=True)
class SplitExtrema(ModulePass):
    """%m = graph.max %x {dims = [0, 1]}   →   %r = graph.max %x {dims = [1]} ; %m = graph.max %r {dims = [0]}

    Rows are those of memory, as far as views tell: an extremum is the same in any order. That of NaN is NaN both ways.
    """

    name: ClassVar[str] = "split_extrema"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for candidate in list(function.block.ops):
                    if isinstance(candidate, Extremum):
                        _split(function, candidate)


def _split(function: FuncOp, reduction: Extremum) -> None:
    found = tensor_of(reduction.results[0].type)
    if any(size != 1 for size in found.shape):
        return
    source = _in_any_order(reduction.operands[0])
    shape = [size for size in tensor_of(source.type).shape if isinstance(size, int)]
    if len(shape) != tensor_of(source.type).rank or prod(shape) < _LEAST_ELEMENTS:
        return
    kept = len(shape) - 1
    while prod(shape[kept:]) < _LONG_ROW and prod(shape[: kept - 1]) >= _LEAST_ROWS:
        kept -= 1
    if prod(shape[:kept]) < _LEAST_ROWS or prod(shape[kept:]) < _LEAST_ROW:
        return
    kind = reduction.name.removeprefix("graph.")
    b = GraphBuilder(function.block, before=reduction)
    rows = b.emit(kind, source, dims=tuple(range(kept, len(shape))), keep=False)
    whole = b.emit(kind, rows, dims=tuple(range(kept)), keep=False)
    reduction.results[0].replace_all_uses_with(b.reshape(whole, shape=found.shape) if found.shape else whole)
    reduction.detach()
    reduction.erase()


def _in_any_order(value: SSAValue) -> SSAValue:
    """What has the same elements as a value, where that is only another order of them."""
    while isinstance(value, OpResult) and isinstance(value.op, Permute | Reshape):
        value = value.op.operands[0]
    return value
