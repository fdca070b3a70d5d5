"""Hold the frozen weights of matmuls as integers of 8 bits: a quarter of the memory to read, less exact results.

A column of weights has one factor, its largest magnitude over 127. A few weights or elements that are far larger than
the others would leave these too few steps, so both sides of a matmul are first multiplied with a Hadamard matrix along
K: that spreads them over 64 neighbours, and leaves the matmul as it is. `hoist_constants` then computes factors and
integers once, and the kernels of matmuls widen the integers as they read them. Where a pass is `dynamic`, rows of what
is multiplied with them become integers of 16 bits, each by a factor of its own, whenever the program runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import product as product_of
from weft.ir.types import DType, f32, i8, i16, i32, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot, transposed
from weft.passes.convolution.convolve_by_matmul import ROWS_OF_WINDOWS
from weft.passes.grouping.build_groups import TWO_DIGITS, WIDENS
from weft.passes.simplify.constant_values import fixed_values, made_by

_LEAST_SIDE = 64
"""Smaller weights take little memory, and their matmuls little time."""
_FEW_ROWS = 8
"""With more rows, a matmul of floats takes as long with weights of 8 bits as without: they are left alone then."""
_LARGEST = 127
_LARGEST_OF_ROWS = 127 * 257
"""The largest number that two digits of 8 bits make."""
_LARGEST_SUM = 2**31 - 1
_SPREAD, _LEAST_SPREAD = 64, 16
"""The sides of Hadamard matrices. One of 128 is hardly better and takes twice the time, one of 8 does too little."""


@dataclass(frozen=True)
class QuantizeWeights(ModulePass):
    """Matmuls with constant f32 weights of at least 64 by 64 read integers, and scale the result.

    %y = graph.dot %x, %w      →      %u = graph.dot %x, %h                         (by blocks of 64 along K)
                                      %v = graph.dot %h, %w / 64
                                      %s = graph.max (graph.abs %v) / 127 over K    (1 for a column of zeros)
                                      %q = graph.cast (graph.round (graph.div %v, %s)) to i8
                                      %d = graph.dot %u, (graph.cast %q to f32 {weft.widens})
                                      %y = graph.mul %d, %s

                                   or, if `dynamic`, with the factors and i16 of rows, %t and %p, made likewise:

                                      %d = graph.dot %p, %q to i32
                                      %y = graph.mul (graph.mul (graph.cast %d to f32), %t), %s

    Where K is not divided by 64, a matrix of 32 or 16 takes its place, or none. Rows have as many steps as sums of 32
    bits have room for. Unless it is `dynamic`, a matmul with more than 8 rows stays in f32. A column with a weight, or
    a row with an element, that is no finite number gives NaN.
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
        self.known: dict[tuple[SSAValue, int, int], _Quantized] = {}
        self.spread: dict[tuple[SSAValue, int], SSAValue] = {}
        self.hadamard: dict[int, SSAValue] = {}

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
        if tensor.dtype != f32 or not isinstance(k, int) or not isinstance(n, int) or min(k, n) < _LEAST_SIDE:
            return False
        if self.dynamic:
            return _largest_of_rows(k) >= _LARGEST
        rows = tensor_of(x.type).shape[-2]
        return not isinstance(rows, int) or rows <= _FEW_ROWS

    def _rewrite(self, dot: Dot) -> None:
        b = GraphBuilder(self.function.block, dot.location, before=dot)
        x, weight = dot.operands
        depth = tensor_of(weight.type).shape[-2]
        assert isinstance(depth, int)
        side = min(depth & -depth, _SPREAD)
        if side >= _LEAST_SPREAD:
            x, weight = self._spread_rows(b, x, side), self._spread_columns(b, weight, side)
        columns = self._quantized(b, weight, -2, i8, _LARGEST)
        if self.dynamic:
            rows = self._quantized(b, x, -1, i16, _largest_of_rows(depth))
            total = b.dot(rows.integers, columns.integers, dtype=i32)
            total.owner.attributes[TWO_DIGITS] = UnitAttr()
            product = b.mul(b.mul(b.cast(total, dtype=f32), rows.factors), columns.factors)
        else:
            wide = b.cast(columns.integers, dtype=f32)
            wide.owner.attributes[WIDENS] = UnitAttr()
            product = b.mul(b.dot(x, wide), columns.factors)
        dot.results[0].replace_all_uses_with(product)
        dot.detach()
        dot.erase()

    def _spread_rows(self, b: GraphBuilder, value: SSAValue, side: int) -> SSAValue:
        """Every block of a row times a Hadamard matrix, unscaled."""
        if (value, side) not in self.spread:
            if side not in self.hadamard:
                self.hadamard[side] = _hadamard(b, side)
            shape = b.tensor(value).shape
            source = value
            while (view := made_by(source, "graph.reshape")) is not None:  # one reshape of memory is no gather
                source = view.operands[0]
            blocks = b.reshape(source, shape=(product_of(shape[:-1]) * (shape[-1] // side), side))
            self.spread[value, side] = b.reshape(b.dot(blocks, self.hadamard[side]), shape=shape)
        return self.spread[value, side]

    def _spread_columns(self, b: GraphBuilder, value: SSAValue, side: int) -> SSAValue:
        """A Hadamard matrix times every block of a column, scaled so that it undoes what was done to the rows."""
        key = (value, -side)
        if key not in self.spread:
            spread = self._spread_rows(b, transposed(b, value), side)
            self.spread[key] = b.mul(transposed(b, spread), b.full_like(value, 1 / side))
        return self.spread[key]

    def _quantized(self, b: GraphBuilder, value: SSAValue, dim: int, dtype: DType, most: int) -> _Quantized:
        """The integers of a matrix, with a factor for all along a dimension."""
        key = (value, dim, most)
        if key not in self.known:
            largest = b.max(b.abs(value), dims=(b.tensor(value).rank + dim,), keep=True)
            one, zero, steps = (b.full_like(value, number) for number in (1.0, 0.0, float(most)))
            factors = b.div(largest, steps)  # which may underflow
            factors = b.where(b.eq(factors, zero), one, factors)
            integers = b.cast(b.round(b.div(value, factors)), dtype=dtype)
            self.known[key] = _Quantized(integers, factors)
        return self.known[key]


def _largest_of_rows(depth: int) -> int:
    """The largest integer of rows whose sums of so many matmuls do not overflow."""
    return min(_LARGEST_OF_ROWS, _LARGEST_SUM // (_LARGEST * depth))


def _hadamard(b: GraphBuilder, side: int) -> SSAValue:
    """The matrix [side, side] of Sylvester: -1 where i and j have an odd number of ones in common, else 1."""
    shape = (side, side)
    odd = b.bitwise_and(b.iota(shape=shape, dim=0, dtype=i32), b.iota(shape=shape, dim=1, dtype=i32))
    for shift in (4, 2, 1):
        odd = b.bitwise_xor(odd, b.shr(odd, b.full_like(odd, shift)))
    odd = b.cast(b.bitwise_and(odd, b.full_like(odd, 1)), dtype=f32)
    return b.sub(b.full_like(odd, 1.0), b.mul(odd, b.full_like(odd, 2.0)))


def _reads_argument(value: SSAValue) -> bool:
    """Whether a value is made of weights that the program was given: tables that it computes are left alone."""
    if isinstance(value, BlockArgument):
        return True
    return isinstance(value, OpResult) and any(map(_reads_argument, value.op.operands))
