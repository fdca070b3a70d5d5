"""Quantisation of a graph function: products of matrices and convolutions see integers of few bits, times a factor.

What an op sums along one dimension, a row of one operand or a column of the other, has one factor: its largest
magnitude over the largest integer. Gradients pass through the rounding as if it were not there (straight-through), so
that a quantised function is trained, differentiated and batched like any other. An op's class says by `contracted`
along what it sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from weft.errors import ParseError
from weft.ir.locations import sourced
from weft.ir.types import DType, Tensor, i16, i32, i64, tensor_of
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.differentiate import transform_functions
from weft.passes.recompute import inherit_marks, marks_of, ops_after

Contracted = Callable[..., tuple[tuple[int, ...], ...]]
_BITS = {16: i16, 32: i32, 64: i64}


@dataclass(frozen=True)
class Quantize(ModulePass):
    """%y = graph.dot %x, %w   →   %y = graph.dot (graph.mul (graph.round (graph.div %x, %s)), %s), …

    The integers have so many `bits`; `weights` quantises the second operands alone.
    """

    name: ClassVar[str] = "quantize"
    bits: int = 8
    weights: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        transform_functions(op, lambda function: quantize_function(function, self.bits, self.weights))


def quantize_function(function: FuncOp, bits: int = 8, weights: bool = False) -> FuncOp:
    """The function whose products are of integers with `bits` bits, times factors; of second operands, if `weights`.

    graph.func @f(%x, %w) {                 graph.func @f_quantize(%x, %w) {
      %y = graph.dot %x, %w                   %s = graph.max (graph.abs %x) / 127 over K
      graph.return %y              →          %q = graph.mul (graph.round (graph.div %x, %s)), %s
    }                                         …                       (and %w likewise, by columns)
                                              %y = graph.dot %q, %v
                                              graph.return %y
                                            }
    """
    if not 2 <= bits <= 8:
        raise ParseError(f"integers of {bits} bits", hint="quantize takes 2 to 8")
    made = function.clone()
    _quantize_block(made.block, 2 ** (bits - 1) - 1, 1 if weights else 0)
    made.sym_name = StringAttr(f"{function.sym_name.data}_quantize")
    return made


def _quantize_block(block: Block, largest: int, first: int) -> None:
    known: dict[tuple[SSAValue, tuple[int, ...]], SSAValue] = {}
    for op in list(block.ops):
        for region in op.regions if isinstance(op, ControlOp) else ():
            _quantize_block(region.block, largest, first)
        contracted: Contracted | None = getattr(type(op), "contracted", None)
        if contracted is None or not isinstance(op, GraphOp) or not _is_for(op):
            continue
        operands = list(op.operands)
        dims = contracted(*(tensor_of(x.type) for x in operands), **op.params)
        before = op.prev_op
        with sourced(op.location):
            b = GraphBuilder(block, before=op)
            for place in range(first, len(dims)):
                key = operands[place], dims[place]
                if key not in known:
                    known[key] = quantized(b, *key, largest)
                operands[place] = known[key]
        inherit_marks(marks_of(op), ops_after(before, GraphBuilder(block, before=op)))
        op.operands = operands


def _is_for(op: GraphOp) -> bool:
    """Whether it has floats of a width that integers have, and elements."""
    tensors = [tensor_of(x.type) for x in op.operands]
    return all(each.dtype.is_float and each.dtype.bits in _BITS and 0 not in each.shape for each in tensors)


def quantized(b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], largest: int) -> SSAValue:
    """The nearest integers up to the largest, times the factor of all along `dims`: with the gradient of `x` itself."""
    bits = _BITS[b.tensor(x).dtype.bits]
    fixed = _stopped(b, x, bits)
    most = b.max(b.abs(fixed), dims=dims, keep=True)
    factor = b.div(most, b.full_like(fixed, float(largest)))  # which may underflow
    factor = b.where(b.eq(factor, b.full_like(fixed, 0.0)), b.full_like(fixed, 1.0), factor)
    nearest = b.mul(b.round(b.div(fixed, factor)), factor)
    return b.add(nearest, b.sub(x, fixed))  # x less itself is 0; its derivative is 1


def _stopped(b: GraphBuilder, x: SSAValue, bits: DType) -> SSAValue:
    """The same values, through which no gradient flows: bits have none."""
    tensor: Tensor = b.tensor(x)
    return b.bitcast(b.bitcast(x, dtype=bits), dtype=tensor.dtype)
