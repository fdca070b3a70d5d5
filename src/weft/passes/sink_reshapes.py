"""Move reshapes of products below the ops that follow, so that these can join the product's kernel.

Models reshape [batch, tokens, width] to rows for a product and back. The ops after it (bias, activation, residual,
norm) do not care: computed on the rows, they are epilogues of the product, and agree in shape with each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.reduce import DimensionReduction
from weft.ops.reshaping import matching_runs
from weft.passes.constant_values import made_by

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class SinkReshapes(ModulePass):
    """Other operands are reshaped instead, which is free, where they vary along all merged dimensions or none.

    %d = graph.dot %a, %b : 48x64                     %d = graph.dot %a, %b : 48x64
    %r = graph.reshape %d : 2x24x64            →      %x = graph.reshape %res : 48x64
    %y = graph.add %r, %res : 2x24x64                 %s = graph.add %d, %x : 48x64
                                                      %y = graph.reshape %s : 2x24x64

    Permutes sink as well, below ops whose other operands are single numbers.
    """

    name: ClassVar[str] = "sink_reshapes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                _Sinking(function).run()


class _Sinking:
    """One walk over a function. `rows` holds the products, and what was computed in their shape after them."""

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.rows: set[SSAValue] = set()

    def run(self) -> None:
        for op in list(self.function.block.ops):
            if op.name == "graph.dot":
                self.rows.add(op.results[0])
                continue
            if not isinstance(op, Elementwise | DimensionReduction):
                continue
            b = GraphBuilder(self.function.block, op.location, before=op)
            replacement = self._reduction(b, op) if isinstance(op, DimensionReduction) else self._elementwise(b, op)
            if replacement is not None:
                op.results[0].replace_all_uses_with(replacement)
                op.detach()
                op.erase()
            elif any(operand in self.rows for operand in op.operands):
                self.rows.add(op.results[0])

    def _elementwise(self, b: GraphBuilder, op: Elementwise) -> SSAValue | None:
        shape = tensor_of(op.results[0].type).shape
        for operand in op.operands:
            view = made_by(operand, "graph.reshape", "graph.permute")
            if view is None or view.operands[0] not in self.rows or tensor_of(operand.type).shape != shape:
                continue
            target = tensor_of(view.operands[0].type).shape
            if view.name == "graph.permute":
                operands = [_unpermuted(x, view) for x in op.operands]
            else:
                source = view.operands[0]
                operands = [source if x is operand else _reshaped(b, x, shape, target) for x in op.operands]
            found = [x for x in operands if x is not None]
            if len(found) == len(operands):
                result: SSAValue = b.emit(op.name.removeprefix("graph."), *found, **op.params)
                self.rows.add(result)
                if view.name == "graph.permute":
                    return b.permute(result, dims=view.params["dims"])
                return b.reshape(result, shape=shape)
        return None

    def _reduction(self, b: GraphBuilder, op: DimensionReduction) -> SSAValue | None:
        view = made_by(op.operands[0], "graph.reshape")
        dims: tuple[int, ...] = op.params["dims"]
        if view is None or view.operands[0] not in self.rows or not dims:
            return None
        source = view.operands[0]
        reduced: list[int] = []
        for here, there in matching_runs(tensor_of(view.results[0].type).shape, tensor_of(source.type).shape):
            inside = [d in dims for d in here]
            if any(inside) and not all(inside):
                return None
            reduced += there if any(inside) else []
        if not reduced:
            return None
        name = op.name.removeprefix("graph.")
        result: SSAValue = b.emit(name, source, dims=tuple(sorted(reduced)), keep=op.params["keep"])
        self.rows.add(result)
        return b.reshape(result, shape=tensor_of(op.results[0].type).shape)


def _reshaped(b: GraphBuilder, x: SSAValue, shape: Shape, target: Shape) -> SSAValue | None:
    """An operand of an op of one shape, as operand of the op in another; None where no reshape makes it one."""
    own = tensor_of(x.type).shape
    if all(size == 1 for size in own):
        wanted: Shape | None = ()
    else:
        wanted = _target_shape((*(1,) * (len(shape) - len(own)), *own), shape, target)
    if wanted is None:
        return None
    if own == wanted or (len(own) <= len(wanted) and wanted == (*(1,) * (len(wanted) - len(own)), *own)):
        return x
    view = made_by(x, "graph.reshape")
    source = x if view is None else view.operands[0]
    return source if tensor_of(source.type).shape == wanted else b.reshape(source, shape=wanted)


def _target_shape(own: Shape, shape: Shape, target: Shape) -> Shape | None:
    result: list[Size] = [1] * len(target)
    for here, there in matching_runs(shape, target):
        if all(own[d] == shape[d] for d in here):
            for d in there:
                result[d] = target[d]
        elif any(own[d] != 1 for d in here):
            return None
    return tuple(result)


def _unpermuted(x: SSAValue, view: GraphOp) -> SSAValue | None:
    """An operand before a permute: what is permuted in the same way, or a single number."""
    if x is view.results[0]:
        return view.operands[0]
    own = made_by(x, "graph.permute")
    if own is not None and own.params["dims"] == view.params["dims"]:
        return own.operands[0]
    return x if tensor_of(x.type).rank == 0 else None
