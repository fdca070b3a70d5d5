"""Groups around a matmul → one tile kernel.

    graph.group(%x, %w, %c) {              tile.kernel @dot_add grid [batch, column blocks, row blocks] {
      %0 = graph.dot(%x, %w)                 %acc = tile.for k = 0 to K step BK carrying 0 {
      %1 = graph.add(%0, %c)          →        %a = tile.load %x[..] : BM x BK ;  %b = tile.load %w[..] : BK x BN
      %2 = graph.relu(%1)                      tile.yield tile.dot %a, %b, %acc }
      graph.yield %2                         tile.store %y[..], max(%acc + tile.load %c[..], 0)
    }                                      }

What comes before the matmul (views, casts, cheap elementwise ops) is computed on the operands' tiles, what comes after
it, the epilogue, on the accumulators. Programs of one column block are neighbours, so that the block of b they share
stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.lower.dot.dot_kernel import DotLowering
from weft.lower.dot.dot_runs import Product
from weft.lower.dot.split_k import lower_split_k
from weft.lower.emit.blocked import epilogue_refusal
from weft.lower.lowered import Lowered, whole
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.passes.update_in_place import in_place_of


def lower_dot(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that holds a matmul, or several of the same rows, with all operands and results in layouts."""
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    dots = [op for op in group.block.ops if isinstance(op, Product)]
    in_place = in_place_of(group)
    lowering = DotLowering(group, name, layouts, outputs, dots, machine)
    refused = epilogue_refusal(group, [dot.results[0] for dot in dots]) or lowering.prepare()
    if refused is not None:
        return refused
    if (split := lowering.split()) is not None:
        in_parts = lower_split_k(group, name, inputs, outputs, split, machine)
        if not isinstance(in_parts, Refusal):
            return in_parts
    return whole(lowering.kernel(), len(inputs), len(outputs), in_place)
