"""Matmuls with few results become sums of rows: each result has a program, where a library would leave a GPU idle.

The matmul that says how much each expert is wanted by a token is such: a few rows, and a column for each expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import DType, bf16, f16, f32, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot
from weft.passes.claim_libraries import FEW_ROWS, worth_streaming

_MOST, _LEAST_DEPTH, _MOST_DEPTH = 2048, 128, 16384
"""Results that are worth a program each, and the length of the sums that one has registers for."""


def worth_summing(dtype: DType, shape: Sequence[Size], depth: Size) -> bool:
    """Whether a matmul [m, k] x [k, n], whose operands lie along K, has so few results that each is a sum."""
    if dtype not in (f16, bf16) or len(shape) != 2:
        return False
    m, n = shape
    if not isinstance(m, int) or not isinstance(n, int) or not isinstance(depth, int):
        return False
    few = 0 < m <= FEW_ROWS and n > 1 and m * n <= _MOST and _LEAST_DEPTH <= depth <= _MOST_DEPTH
    return few and not worth_streaming(dtype, shape, depth)


@dataclass(frozen=True)
class SumSmallDots(ModulePass):
    """%y = graph.dot %x, (graph.permute %w)    →    %y = graph.sum (graph.mul %x, %w) (4 x 32 x 2880)"""

    name: ClassVar[str] = "sum_small_dots"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for dot in list(function.block.ops):
                    if isinstance(dot, Dot) and _is_small(dot):
                        _rewrite(function, dot)


def _is_small(dot: Dot) -> bool:
    x, result = tensor_of(dot.operands[0].type), tensor_of(dot.results[0].type)
    return x.dtype == result.dtype and worth_summing(result.dtype, result.shape, x.shape[-1])


def _rewrite(function: FuncOp, dot: Dot) -> None:
    b = GraphBuilder(function.block, before=dot, location=dot.location)
    x, w = dot.operands
    (m, k), n = b.tensor(x).shape, b.tensor(w).shape[1]
    rows = b.cast(b.reshape(x, shape=(m, 1, k)), dtype=f32)
    columns = b.cast(b.reshape(b.permute(w, dims=(1, 0)), shape=(1, n, k)), dtype=f32)
    total = b.sum(b.mul(rows, columns), dims=(2,), keep=False)
    dot.results[0].replace_all_uses_with(b.cast(total, dtype=b.tensor(dot.results[0]).dtype))
    dot.detach()
    dot.erase()
