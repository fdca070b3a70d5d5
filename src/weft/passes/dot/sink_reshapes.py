"""Move reshapes of matmuls below the ops that follow, so that these can join the matmul's kernel.

Models reshape [batch, tokens, width] to rows for a matmul and back. The ops after it (bias, activation, residual,
norm) do not care: computed on the rows, they are epilogues of the matmul, and agree in shape with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp
from weft.ops.reduce import DimensionReduction
from weft.ops.reshaping import matching_runs
from weft.ops.windows.pool import Pool
from weft.passes.grouping.build_groups import strides_of
from weft.passes.simplify.constant_values import made_by

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class SinkReshapes(ModulePass):
    """Other operands are reshaped instead, which is free, where they vary along all merged dimensions or none.

    %d = graph.dot %a, %b : 48x64                     %d = graph.dot %a, %b : 48x64
    %r = graph.reshape %d : 2x24x64            →      %x = graph.reshape %res : 48x64
    %y = graph.add %r, %res : 2x24x64                 %s = graph.add %d, %x : 48x64
                                                      %y = graph.reshape %s : 2x24x64

    Permutes sink as well, below ops whose other operands vary along one dimension at most, or are such views too. With
    `whole`, others may be permuted back if they are computed here: a kernel or a library writes them in that order.
    """

    name: ClassVar[str] = "sink_reshapes"
    whole: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                _Sinking(function, whole=self.whole).run()


@dataclass(frozen=True)
class _View:
    """A reshape or a permute: its parameters, and the shape that it gives."""

    kind: type[GraphOp]
    params: Mapping[str, Any]
    shape: Shape

    @property
    def permutes(self) -> bool:
        return "dims" in self.params


@dataclass(frozen=True)
class _Viewed:
    """A value as views of another, the first made first."""

    base: SSAValue
    views: tuple[_View, ...]


class _Sinking:
    """One walk over a function.

    `rows` holds the matmuls, and what was computed in their shape after them. `moved` has, for the result of each op
    that was computed in another shape, what it is a view of: that is only made where someone still reads the result.
    """

    def __init__(self, function: FuncOp, *, whole: bool) -> None:
        self.function = function
        self.whole = whole
        self.rows: set[SSAValue] = set()
        self.moved: dict[SSAValue, _Viewed] = {}

    def run(self) -> None:
        done: list[GraphOp] = []
        for op in list(self.function.block.ops):
            if op.name == "graph.dot":
                self.rows.add(op.results[0])
            elif isinstance(op, Elementwise | DimensionReduction):
                viewed = self._reduction(op) if isinstance(op, DimensionReduction) else self._elementwise(op)
                if viewed is not None:
                    self.rows.add(viewed.base)
                    self.moved[op.results[0]] = viewed
                    done.append(op)
                elif any(operand in self.rows for operand in op.operands):
                    self.rows.add(op.results[0])
            elif op.name == "graph.reshape" and isinstance(op, GraphOp) and op.operands[0] in self.moved:
                self._cancel(op)
        for op in reversed(done):
            if op.results[0].uses:
                viewed = self.moved[op.results[0]]
                value = viewed.base
                for view in viewed.views:
                    made = view.kind.make(value, location=op.location, **view.params)
                    self.function.block.insert_op_before(made, op)
                    value = made.results[0]
                op.results[0].replace_all_uses_with(value)
            op.detach()
            op.erase()

    def _cancel(self, op: GraphOp) -> None:
        """A reshape back to rows is not needed."""
        viewed = self.moved[op.operands[0]]
        if not any(view.permutes for view in viewed.views) and viewed.base.type == op.results[0].type:
            op.results[0].replace_all_uses_with(viewed.base)

    def _viewed(self, value: SSAValue) -> _Viewed | None:
        """What a value is a view of, if that is of rows."""
        views: list[_View] = []
        while value not in self.moved and value not in self.rows:
            op = made_by(value, "graph.reshape", "graph.permute")
            if op is None:
                return None
            views.insert(0, _View(type(op), op.params, tensor_of(value.type).shape))
            value = op.operands[0]
        known = self.moved.get(value, _Viewed(value, ()))
        return _Viewed(known.base, (*known.views, *views))

    def _elementwise(self, op: Elementwise) -> _Viewed | None:
        result = tensor_of(op.results[0].type)
        for operand in op.operands:
            viewed = self._viewed(operand)
            if viewed is None or not viewed.views or tensor_of(operand.type).shape != result.shape:
                continue
            operands: list[SSAValue] = []
            for x in op.operands:
                found = viewed.base if x is operand else self._before(op, x, viewed)
                if found is None:
                    break
                operands.append(found)
            if len(operands) == len(op.operands):
                # The type rule has seen the op already; only the shape is another.
                made = type(op).create(
                    operands=operands,
                    result_types=[tensor_type(Tensor(result.dtype, tensor_of(viewed.base.type).shape))],
                    attributes=op.attributes,
                    location=op.location,
                )
                self.function.block.insert_op_before(made, op)
                return _Viewed(made.results[0], viewed.views)
        return None

    def _reduction(self, op: DimensionReduction) -> _Viewed | None:
        viewed = self._viewed(op.operands[0])
        dims: tuple[int, ...] = op.params["dims"]
        if viewed is None or len(viewed.views) != 1 or viewed.views[0].permutes or not dims:
            return None
        source = viewed.base
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
        shape = tensor_of(op.results[0].type).shape
        return _Viewed(made.results[0], (_View(viewed.views[0].kind, {"shape": shape}, shape),))

    def _before(self, op: GraphOp, x: SSAValue, viewed: _Viewed) -> SSAValue | None:
        """An operand of an op on a view, as operand of the op on what is viewed; None where no view makes it one."""
        base = tensor_of(viewed.base.type).shape
        own = self._viewed(x)
        if own is not None and own.views == viewed.views and tensor_of(own.base.type).shape == base:
            return own.base
        shapes = [base, *(view.shape for view in viewed.views)]
        found: SSAValue | None = x
        for view, target in zip(reversed(viewed.views), reversed(shapes[:-1]), strict=True):
            if found is not None:
                before = self._unpermuted if view.permutes else self._reshaped
                found = before(op, found, view, target)
        return found

    def _reshaped(self, op: GraphOp, x: SSAValue, view: _View, target: Shape) -> SSAValue | None:
        """An operand in the shape from which a reshape came."""
        own = tensor_of(x.type).shape
        if not own:
            return x
        wanted: Shape | None = ()
        if any(size != 1 for size in own):
            wanted = target_shape((*(1,) * (len(view.shape) - len(own)), *own), view.shape, target)
        if wanted is None:
            return None
        if len(own) <= len(wanted) and wanted == (*(1,) * (len(wanted) - len(own)), *own):
            return x
        known = self.moved.get(x)
        reshape = made_by(x, "graph.reshape")
        source = known.base if known is not None and _is_reshape(known) else reshape.operands[0] if reshape else x
        if tensor_of(source.type).shape == wanted:
            return source
        return GraphBuilder(self.function.block, op.location, before=op).reshape(source, shape=wanted)

    def _unpermuted(self, op: GraphOp, x: SSAValue, view: _View, target: Shape) -> SSAValue | None:
        """An operand before a permute: a single number as it is, what varies along one dimension by a reshape."""
        own = tensor_of(x.type).shape
        if not own:
            return x
        dims: tuple[int, ...] = view.params["dims"]
        b = GraphBuilder(self.function.block, op.location, before=op)
        if sum(size != 1 for size in own) > 1:
            back = tuple(map(dims.index, range(len(dims))))
            return b.permute(x, dims=back) if self.whole and own == view.shape and _is_written(x) else None
        wanted: list[Size] = [1] * len(target)
        for size, dim in zip(reversed(own), reversed(dims), strict=False):  # leading ones are left out
            wanted[dim] = size
        return b.reshape(x, shape=tuple(wanted))


def _is_reshape(viewed: _Viewed) -> bool:
    return len(viewed.views) == 1 and not viewed.views[0].permutes


def _is_written(x: SSAValue) -> bool:
    """Whether a value may be written in another order than row by row: by a kernel, or a call that does so anyway."""
    while (reshape := made_by(x, "graph.reshape")) is not None:
        x = reshape.operands[0]
    if not isinstance(x, OpResult):
        return False
    if isinstance(call := x.op, OpaqueOp):
        return strides_of(call, "result_strides", len(call.results))[x.index] is not None
    return isinstance(x.op, Elementwise | Pool)


@lru_cache(maxsize=4096)  # layers repeat the same reshapes
def target_shape(own: Shape, shape: Shape, target: Shape) -> Shape | None:
    """What an operand of shape `own` becomes where an op is computed in another shape; None if no view makes it."""
    result: list[Size] = [1] * len(target)
    for here, there in matching_runs(shape, target):
        if all(own[d] == shape[d] for d in here):
            for d in there:
                result[d] = target[d]
        elif any(own[d] != 1 for d in here):
            return None
    return tuple(result)
