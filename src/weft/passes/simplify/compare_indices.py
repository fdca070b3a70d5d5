"""Write one element a line into a constant by comparing places: unlike a scatter, that joins the kernel that reads it.

The gradient of a loss that picks an element of each row is such: all zeros but for that. A line's sum is then that
element, and what would have needed whole rows needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import i32, i64, tensor_of
from weft.ops.elementwise.cast import Cast
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.indexing.scatter import ScatterElements
from weft.ops.reduce import Sum
from weft.ops.rules import size_value
from weft.passes.grouping.build_groups import is_free
from weft.passes.simplify.constant_values import number_of


@dataclass(frozen=True)
class CompareIndices(ModulePass):
    """%z = graph.full 0 (8192 x 50257)                           %j = graph.iota (1 x 50257)
    %y = graph.scatter %z, %i, %u dim=1 (8192 x 1)       →        %y = graph.where (%j == %i), %u, %z
    %g = graph.mul %y, %w              (%w: 8192 x 1)             %g = graph.mul %y, %w
    %s = graph.sum %g dims=[1]                                    %s = graph.mul %u, %w
    """

    name: ClassVar[str] = "compare_indices"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for scatter in list(function.block.ops):
                    if isinstance(scatter, ScatterElements) and _is_one_a_line(scatter):
                        _add_at_once(function, scatter)
                        _rewrite(function, scatter)


def _is_one_a_line(scatter: ScatterElements) -> bool:
    x, index, updates = (tensor_of(operand.type) for operand in scatter.operands)
    source = scatter.operands[0]
    line = tuple(1 if d == scatter.params["dim"] else size for d, size in enumerate(x.shape))
    constant = isinstance(source, OpResult) and is_free(source.op) and not source.op.operands
    kind = scatter.params["kind"]
    written = kind == "assign" or (kind == "add" and number_of(source) == 0)  # one is written to each line
    return constant and written and index.shape == updates.shape == line


def _add_at_once(function: FuncOp, scatter: ScatterElements) -> None:
    """The sum of a line that is zero but for one element is that element, also of multiples and of another type."""
    if number_of(scatter.operands[0]) != 0:
        return
    pending = [(scatter.results[0], scatter.operands[2])]
    while pending:
        line, element = pending.pop()
        for user in [use.operation for use in line.uses]:
            if isinstance(user, Sum) and user.params["dims"] == (scatter.params["dim"],):
                b = GraphBuilder(function.block, before=user, location=user.location)
                user.results[0].replace_all_uses_with(b.reshape(element, shape=tensor_of(user.results[0].type).shape))
                user.detach()
                user.erase()
            elif (made := _element_of(function, user, line, element, scatter)) is not None:
                pending.append((user.results[0], made))


def _element_of(
    function: FuncOp, user: Operation, line: SSAValue, element: SSAValue, scatter: ScatterElements
) -> SSAValue | None:
    """The one element of what is made of a line, where its zeros stay zeros."""
    b = GraphBuilder(function.block, before=user, location=user.location)
    if isinstance(user, Cast):
        dtype = tensor_of(user.results[0].type).dtype
        return b.cast(element, dtype=dtype) if dtype.is_float else None
    if user.name != "graph.mul" or tensor_of(user.results[0].type).shape != tensor_of(line.type).shape:
        return None
    factor = next((f for f in user.operands if f is not line), None)
    return None if factor is None or not _is_same_along(factor, scatter) else b.mul(element, factor)


def _is_same_along(factor: SSAValue, scatter: ScatterElements) -> bool:
    """Whether a factor is the same for the whole of a line."""
    dim: int = scatter.params["dim"]
    behind = tensor_of(scatter.results[0].type).rank - dim
    shape = tensor_of(factor.type).shape
    return len(shape) < behind or shape[-behind] == 1


def _rewrite(function: FuncOp, scatter: ScatterElements) -> None:
    b = GraphBuilder(function.block, before=scatter, location=scatter.location)
    x, index, updates = scatter.operands
    dim: int = scatter.params["dim"]
    size = tensor_of(x.type).shape[dim]
    dtype = tensor_of(index.type).dtype
    shape = tuple(size if d == dim else 1 for d in range(tensor_of(x.type).rank))
    index = index if dtype == i64 else b.cast(index, dtype=i64)
    zero, count = b.full(value=0, shape=(), dtype=i64), size_value(b, size, i64)
    # As in a scatter: counted from the end where it is negative, and kept inside.
    index = b.where(b.lt(index, zero), b.add(index, count), index)
    index = b.maximum(b.minimum(index, size_value(b, size - 1, i64)), zero)
    # Each place is compared: in 32 bits where they are enough.
    places = i32 if isinstance(size, int) and size < 1 << 31 else i64
    index = index if places == i64 else b.cast(index, dtype=places)
    chosen = b.eq(b.iota(shape=shape, dim=dim, dtype=places), index)
    scatter.results[0].replace_all_uses_with(b.where(chosen, updates, x))
    scatter.detach()
    scatter.erase()
