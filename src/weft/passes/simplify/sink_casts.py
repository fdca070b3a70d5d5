"""Widen behind views, and narrow before them: the wide values then stay inside of the kernels that compute with them.

A loss widens its logits and looks at them as rows, of which it takes the largest and the sum. A cast before that view
would be a kernel of its own, which writes all logits in f32; so would one behind the view of their gradient as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, View
from weft.ops.elementwise.cast import Cast
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.reduce import DimensionReduction
from weft.ops.shape import Permute, Reshape, Slice
from weft.passes.grouping.build_groups import CLAIM, INLINED, WIDENS, readers


@dataclass(frozen=True)
class SinkCasts(ModulePass):
    """A cast to a wider type that views alone read moves below one that several ops read, one of which reduces.

    %w = graph.cast %x : 2x512x32000xf32             %v = graph.reshape %x : 1024x32000xbf16
    %v = graph.reshape %w : 1024x32000xf32     →     %w = graph.cast %v : 1024x32000xf32
    %m = graph.max %v                                %m = graph.max %w
    %d = graph.sub %v, %m                            %d = graph.sub %w, %m

    So does what is computed of the cast and of numbers alone, such as a soft cap. With one reader, that reader's kernel
    computes all this already. A view of fewer elements always goes first. A cast to a narrower type goes before
    reshapes and permutes that nobody else reads.
    """

    name: ClassVar[str] = "sink_casts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for each in list(function.block.ops):
                    if isinstance(each, View) and (_is_less(each) or _is_reduced(each)):
                        _sink(function, each, _widening(each.operands[0]))
                    elif isinstance(each, Cast) and each.results[0].uses and not _is_apart(each):
                        _raise(function, each)


def _widening(value: SSAValue) -> list[Elementwise]:
    """The ops that make a value, which views alone read, of numbers and what a cast widens: the last first."""
    chain: list[Elementwise] = []
    if not all(isinstance(use.operation, View) for use in value.uses):
        return chain
    while isinstance(op := value.owner, Elementwise):
        if len(op.results) != 1 or _is_apart(op):
            return []
        chain.append(op)
        if isinstance(op, Cast):
            return chain if _added(op) > 0 else []
        wide = [operand for operand in op.operands if tensor_of(operand.type).rank]
        if len(wide) != 1 or wide[0].type != value.type or not wide[0].has_one_use():
            return []
        (value,) = wide
    return []


def _is_apart(op: Operation) -> bool:
    return any(name in op.attributes for name in (CLAIM, INLINED, WIDENS))


def _added(cast: Cast) -> int:
    """By how many bytes an element gets wider."""
    return tensor_of(cast.results[0].type).dtype.bytes - tensor_of(cast.operands[0].type).dtype.bytes


def _is_less(view: View) -> bool:
    """Whether a view shows fewer elements than there are."""
    return isinstance(view, Slice) and view.operands[0].type != view.results[0].type


def _is_reduced(view: View) -> bool:
    reading: set[Operation] = set(readers(view.results[0]))
    return len(reading) > 1 and any(isinstance(op, DimensionReduction) for op in reading)


def _sink(function: FuncOp, view: View, chain: Sequence[Elementwise]) -> None:
    if not chain:
        return
    b = GraphBuilder(function.block, view.location, before=view)
    old = chain[-1].operands[0]
    new = b.insert(type(view).make(old, location=view.location, **view.params)).results[0]
    for op in reversed(chain):
        operands = [new if operand is old else operand for operand in op.operands]
        old = op.results[0]
        new = b.insert(type(op).make(*operands, location=op.location, **op.params)).results[0]
    view.results[0].replace_all_uses_with(new)
    for op in (view, *chain):
        if not op.results[0].uses:
            op.detach()
            op.erase()


def _raise(function: FuncOp, cast: Cast) -> None:
    """Move a cast to a narrower type before the views that it reads."""
    views: list[View] = []
    source = cast.operands[0]
    while isinstance(view := source.owner, Reshape | Permute) and source.has_one_use():
        views.append(view)
        source = view.operands[0]
    if not views or _added(cast) >= 0 or not isinstance(source.owner, Operation):
        return
    b = GraphBuilder(function.block, cast.location, before=views[-1])
    new = b.cast(source, dtype=tensor_of(cast.results[0].type).dtype)
    for view in reversed(views):
        new = b.insert(type(view).make(new, location=view.location, **view.params)).results[0]
    cast.results[0].replace_all_uses_with(new)
    for op in (cast, *views):
        op.detach()
        op.erase()
