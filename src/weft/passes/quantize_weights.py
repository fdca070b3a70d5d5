"""Hold the frozen weights of products as integers of 8 bits: a quarter of the memory to read, less exact results.

A column of weights has one factor, its largest magnitude over 127. `hoist_constants` then computes factors and integers
once, and the kernels of products widen the integers as they read them. Where a pass is `dynamic`, rows of what is
multiplied with them become integers, too, each by a factor of its own, whenever the program runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import f32, i8, i32, tensor_of
from weft.ops.dot import Dot
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.build_groups import WIDENS
from weft.passes.constant_values import fixed_values
from weft.passes.convolve_by_products import ROWS_OF_WINDOWS

_LEAST_SIDE = 64
"""Smaller weights take little memory, and their products little time."""
_LARGEST = 127


@dataclass(frozen=True)
class QuantizeWeights(ModulePass):
    """Products with constant f32 weights of at least 64 by 64 read integers, and scale the result.

    %y = graph.dot %x, %w      →      %s = graph.max (graph.abs %w) / 127 over K    (1 for a column of zeros)
                                      %q = graph.cast (graph.round (graph.div %w, %s)) to i8
                                      %d = graph.dot %x, (graph.cast %q to f32 {weft.widens})
                                      %y = graph.mul %d, %s

                                   or, if `dynamic`, with the factors and integers of rows, %t and %p, made likewise:

                                      %d = graph.dot %p, %q to i32
                                      %y = graph.mul (graph.mul (graph.cast %d to f32), %t), %s

    A column with a weight, or a row with an element, that is no finite number gives NaN.
    """

    name: ClassVar[str] = "quantize_weights"

    dynamic: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "constants" in function.attributes:
                _Quantizing(function, self.dynamic).run()


@dataclass(frozen=True)
class _Quantized:
    """A matrix as integers, and the factors of its columns [..., 1, N] or rows [..., M, 1]."""

    integers: SSAValue
    factors: SSAValue


class _Quantizing:
    def __init__(self, function: FuncOp, dynamic: bool) -> None:
        self.function = function
        self.dynamic = dynamic
        self.fixed = fixed_values(function)
        self.known: dict[tuple[SSAValue, int], _Quantized] = {}

    def run(self) -> None:
        for op in list(self.function.block.ops):
            if isinstance(op, Dot) and self._is_for(op):
                self._rewrite(op)

    def _is_for(self, dot: Dot) -> bool:
        x, weight = dot.operands
        if weight not in self.fixed or x in self.fixed or not _reads_argument(weight):
            return False
        if ROWS_OF_WINDOWS in dot.attributes:  # rows that are computed as they are read: they would be written first
            return False
        tensor = tensor_of(weight.type)
        k, n = tensor.shape[-2:]
        return tensor.dtype == f32 and isinstance(k, int) and isinstance(n, int) and min(k, n) >= _LEAST_SIDE

    def _rewrite(self, dot: Dot) -> None:
        b = GraphBuilder(self.function.block, dot.location, before=dot)
        x, weight = dot.operands
        columns = self._quantized(b, weight, -2)
        if self.dynamic:
            rows = self._quantized(b, x, -1)
            total = b.cast(b.dot(rows.integers, columns.integers, dtype=i32), dtype=f32)
            product = b.mul(b.mul(total, rows.factors), columns.factors)
        else:
            wide = b.cast(columns.integers, dtype=f32)
            wide.owner.attributes[WIDENS] = UnitAttr()
            product = b.mul(b.dot(x, wide), columns.factors)
        dot.results[0].replace_all_uses_with(product)
        dot.detach()
        dot.erase()

    def _quantized(self, b: GraphBuilder, value: SSAValue, dim: int) -> _Quantized:
        """The integers of a matrix, with a factor for all along a dimension."""
        if (value, dim) not in self.known:
            largest = b.max(b.abs(value), dims=(b.tensor(value).rank + dim,), keep=True)
            one, zero, steps = (b.full_like(value, number) for number in (1.0, 0.0, float(_LARGEST)))
            factors = b.div(largest, steps)  # which may underflow
            factors = b.where(b.eq(factors, zero), one, factors)
            integers = b.cast(b.round(b.div(value, factors)), dtype=i8)
            self.known[value, dim] = _Quantized(integers, factors)
        return self.known[value, dim]


def _reads_argument(value: SSAValue) -> bool:
    """Whether a value is made of weights that the program was given: tables that it computes are left alone."""
    if isinstance(value, BlockArgument):
        return True
    return isinstance(value, OpResult) and any(map(_reads_argument, value.op.operands))
