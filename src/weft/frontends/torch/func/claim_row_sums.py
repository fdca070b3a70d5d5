"""Gradients of tables on a GPU: rows that are added where indices say, by the library that sorts the indices.

    %z = graph.full 0                (V × D)                %w = graph.where (graph.lt %i, 0), (graph.add %i, V), %i
    %y = graph.index_put %z, %i, %u  (u: N × D)       →     %y = graph.opaque "aten::embedding_dense_backward" %u, %w

A kernel of updates that may meet takes them one after the other. Of a batch, the tables lie one behind the other, and
its indices begin at those of its own. Training steps that AOTAutograd captures hand these gradients to the same call.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.frontends.torch.importer.encoding import TensorArgument
from weft.frontends.torch.importer.opaque import make_opaque
from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, i64, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.indexing.scatter import IndexPut
from weft.passes.simplify.constant_values import number_of

_FEW = 16
"""Updates that a kernel has as quickly added one after the other."""


def claim_row_sums(function: FuncOp, objects: dict[str, Any]) -> None:
    """Let torch carry out such sums of a function, which is changed; `objects` is what calls cannot write down."""
    for op in list(function.block.ops):
        if isinstance(op, IndexPut) and _is_row_sum(op):
            b = GraphBuilder(function.block, op.location, before=op)
            op.results[0].replace_all_uses_with(_row_sum(b, op, objects))
            op.detach()
            op.erase()


def _is_row_sum(op: IndexPut) -> bool:
    """Whether rows are added to zeros, at places in the first dimensions."""
    x, updates = tensor_of(op.operands[0].type), tensor_of(op.operands[-1].type)
    dims: tuple[int, ...] = op.params["dims"]
    if not op.params["accumulate"] or op.params["position"] or dims != tuple(range(len(dims))) or len(dims) == x.rank:
        return False
    sizes = (*x.shape, *updates.shape)
    if not x.dtype.is_float or number_of(op.operands[0]) != 0 or not all(isinstance(n, int) and n for n in sizes):
        return False
    return math.prod(updates.shape) // math.prod(x.shape[len(dims) :]) > _FEW  # type: ignore[operator]


def _row_sum(b: GraphBuilder, op: IndexPut, objects: dict[str, Any]) -> SSAValue:
    result, updates = op.operands[0], op.operands[-1]
    x, dims = b.tensor(result), op.params["dims"]
    table, row = (tuple(int(n) for n in part) for part in (x.shape[: len(dims)], x.shape[len(dims) :]))  # type: ignore[arg-type]
    count = math.prod(map(int, b.tensor(updates).shape)) // math.prod(row)  # type: ignore[arg-type]
    shape = b.tensor(updates).shape[: b.tensor(updates).rank - len(row)]
    places = _places(b, op.operands[1:-1], table, shape)
    given = (
        TensorArgument(b.reshape(updates, shape=(count, math.prod(row)))),
        TensorArgument(b.reshape(places, shape=(count,))),
    )
    rows = math.prod(table)
    target = torch.ops.aten.embedding_dense_backward.default
    made = make_opaque(
        target, (*given, rows, -1, False), {}, [Tensor(x.dtype, (rows, math.prod(row)))], objects, op.location
    )
    made.attributes["weft.claim"] = to_attribute("library")
    return b.reshape(b.insert(made).results[0], shape=x.shape)


def _places(b: GraphBuilder, indices: tuple[SSAValue, ...], table: tuple[int, ...], shape: Any) -> SSAValue:
    """The rows of a table of several dimensions that indices name; from the end, where they are negative."""
    found: SSAValue | None = None
    for index, size in zip(indices, table, strict=True):
        place = b.cast(index, dtype=i64) if b.tensor(index).dtype != i64 else index
        wrapped = b.where(b.lt(place, b.full_like(place, 0)), b.add(place, b.full_like(place, size)), place)
        found = wrapped if found is None else b.add(b.mul(found, b.full_like(found, size)), wrapped)
    assert found is not None, "there are indices"
    return found if b.tensor(found).shape == shape else b.broadcast(found, shape=shape)
