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
from weft.ir.types import Tensor, tensor_of, tensor_type
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
    """One walk over a function.

    `rows` holds the products, and what was computed in their shape after them. `moved` has, for the result of each op
    that was computed in another shape, that value: a view of it is only made where someone still reads the result.
    """

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.rows: set[SSAValue] = set()
        self.moved: dict[SSAValue, GraphOp] = {}

    def run(self) -> None:
        done: list[GraphOp] = []
        for op in list(self.function.block.ops):
            if op.name == "graph.dot":
                self.rows.add(op.results[0])
            elif isinstance(op, Elementwise | DimensionReduction):
                view = self._reduction(op) if isinstance(op, DimensionReduction) else self._elementwise(op)
                if view is not None:
                    self.rows.add(view.operands[0])
                    self.moved[op.results[0]] = view
                    done.append(op)
                elif any(operand in self.rows for operand in op.operands):
                    self.rows.add(op.results[0])
            elif op.name == "graph.reshape" and isinstance(op, GraphOp) and op.operands[0] in self.moved:
                self._cancel(op)
        for op in reversed(done):
            view = self.moved[op.results[0]]
            if op.results[0].uses:
                self.function.block.insert_op_before(view, op)
                op.results[0].replace_all_uses_with(view.results[0])
            else:
                view.erase()
            op.detach()
            op.erase()

    def _cancel(self, op: GraphOp) -> None:
        """A reshape back to rows is not needed."""
        view = self.moved[op.operands[0]]
        if view.name == "graph.reshape" and view.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(view.operands[0])

    def _view(self, value: SSAValue, *names: str) -> GraphOp | None:
        """The view that a value is, of those names."""
        moved = self.moved.get(value)
        return made_by(value, *names) if moved is None else moved if moved.name in names else None

    def _elementwise(self, op: Elementwise) -> GraphOp | None:
        result = tensor_of(op.results[0].type)
        for operand in op.operands:
            view = self._view(operand, "graph.reshape", "graph.permute")
            if view is None or view.operands[0] not in self.rows or tensor_of(operand.type).shape != result.shape:
                continue
            source = view.operands[0]
            target = tensor_of(source.type).shape
            operands: list[SSAValue] = []
            for x in op.operands:
                if x is operand:
                    found: SSAValue | None = source
                elif view.name == "graph.permute":
                    found = self._unpermuted(x, view)
                else:
                    found = self._reshaped(op, x, result.shape, target)
                if found is None:
                    break
                operands.append(found)
            if len(operands) == len(op.operands):
                # The type rule has seen the op already; only the shape is another.
                made = type(op).create(
                    operands=operands,
                    result_types=[tensor_type(Tensor(result.dtype, target))],
                    attributes=op.attributes,
                    location=op.location,
                )
                self.function.block.insert_op_before(made, op)
                return type(view).make(made.results[0], location=op.location, **view.params)
        return None

    def _reduction(self, op: DimensionReduction) -> GraphOp | None:
        view = self._view(op.operands[0], "graph.reshape")
        dims: tuple[int, ...] = op.params["dims"]
        if view is None or view.operands[0] not in self.rows or not dims:
            return None
        source = view.operands[0]
        reduced: list[int] = []
        for here, there in matching_runs(tensor_of(op.operands[0].type).shape, tensor_of(source.type).shape):
            inside = [d in dims for d in here]
            if any(inside) and not all(inside):
                return None
            reduced += there if any(inside) else []
        if not reduced:
            return None
        made = type(op).make(source, location=op.location, dims=tuple(sorted(reduced)), keep=op.params["keep"])
        self.function.block.insert_op_before(made, op)
        return type(view).make(made.results[0], location=op.location, shape=tensor_of(op.results[0].type).shape)

    def _reshaped(self, op: GraphOp, x: SSAValue, shape: Shape, target: Shape) -> SSAValue | None:
        """An operand of an op of one shape, as operand of the op in another; None where no reshape makes it one."""
        own = tensor_of(x.type).shape
        if not own:
            return x
        wanted: Shape | None = ()
        if any(size != 1 for size in own):
            wanted = _target_shape((*(1,) * (len(shape) - len(own)), *own), shape, target)
        if wanted is None:
            return None
        if len(own) <= len(wanted) and wanted == (*(1,) * (len(wanted) - len(own)), *own):
            return x
        view = self._view(x, "graph.reshape")
        source = x if view is None else view.operands[0]
        if tensor_of(source.type).shape == wanted:
            return source
        b = GraphBuilder(self.function.block, op.location, before=op)
        return b.reshape(source, shape=wanted)

    def _unpermuted(self, x: SSAValue, view: GraphOp) -> SSAValue | None:
        """An operand before a permute: what is permuted in the same way, or a single number."""
        own = self._view(x, "graph.permute")
        if own is not None and own.params["dims"] == view.params["dims"]:
            return own.operands[0]
        return x if tensor_of(x.type).rank == 0 else None


def _target_shape(own: Shape, shape: Shape, target: Shape) -> Shape | None:
    result: list[Size] = [1] * len(target)
    for here, there in matching_runs(shape, target):
        if all(own[d] == shape[d] for d in here):
            for d in there:
                result[d] = target[d]
        elif any(own[d] != 1 for d in here):
            return None
    return tuple(result)
