"""Convolutions of single places along one dimension, whose places lie innermost, as matmuls that leave them there.

    %y = graph.convolution %x, %w     →     %y = graph.dot (graph.broadcast %w), %x        (w: O × C, x: N × C × L)

Over rows of channels the result would lie with its channels innermost: what follows, and what the caller keeps for the
gradients, mostly lies as the operand does, and would be a turned copy.
"""

from __future__ import annotations

from xdsl.ir import BlockArgument, OpResult, SSAValue

from weft.ir.types import tensor_of
from weft.ops.base import Elementwise
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp
from weft.ops.shape import Permute, Reshape
from weft.ops.windows.convolution import Convolution
from weft.passes.grouping.build_groups import strides_of

_LEAST_PLACES, _COPIED_BYTES = 128, 16
"""Places of an example that fill a matmul's tiles, and what copies of its rows take multiples of."""


def has_places_innermost(x: SSAValue) -> bool:
    """Whether examples [N, C, L] are long, and lie in memory with their places innermost as far as can be seen here."""
    tensor = tensor_of(x.type)
    if tensor.rank != 3:
        return False
    places = tensor.shape[2]
    if not isinstance(places, int) or places < _LEAST_PLACES or places * tensor.dtype.bytes % _COPIED_BYTES:
        return False
    while isinstance(x, OpResult):
        match x.op:
            case Permute():
                return False
            case Reshape():
                (x,) = x.op.operands
            case Elementwise():
                shape = tensor_of(x.type).shape
                x = next((v for v in x.op.operands if tensor_of(v.type).shape == shape), x.op.operands[0])
            case OpaqueOp() as call:
                return strides_of(call, "result_strides", len(call.results))[x.index] is None
            case _:
                return True
    function = x.block.parent_op() if isinstance(x, BlockArgument) else None
    if not isinstance(x, BlockArgument) or not isinstance(function, FuncOp):
        return True
    return strides_of(function, "arg_strides", len(x.block.args))[x.index] is None


def multiply_over_places(function: FuncOp, op: Convolution) -> None:
    """Put a matmul for each example in place of such a convolution."""
    b = GraphBuilder(function.block, op.location, before=op)
    x, w = op.operands
    matrix = tensor_of(w.type).shape[:2]
    weights = b.broadcast(b.reshape(w, shape=matrix), shape=(tensor_of(x.type).shape[0], *matrix))
    op.results[0].replace_all_uses_with(b.dot(weights, x))
    op.detach()
    op.erase()
