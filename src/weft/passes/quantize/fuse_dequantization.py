"""Let matmuls of few rows read weights of few bits as they are, and widen them in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp
from weft.ops.matmul.dot import Dot, TiledDot
from weft.ops.matmul.quantized import Dequantize
from weft.passes.claim_libraries import FEW_ROWS, worth_streaming
from weft.passes.dot.read_gathered_weights import chosen_by
from weft.passes.grouping.build_groups import INLINED, readers


@dataclass(frozen=True)
class FuseDequantization(ModulePass):
    """%w = graph.dequantize %codes, %scales            %w = graph.dequantize %codes, %scales {weft.inlined}
    %y = graph.dot %x, (graph.permute %w)      →      %y = graph.dot %x, (graph.permute %w)

    Matmuls of many rows read weights that a kernel has widened, or that were widened once if they are constants.
    """

    name: ClassVar[str] = "fuse_dequantization"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for candidate in function.block.ops:
                    if isinstance(candidate, Dequantize) and all(map(is_narrow, readers(candidate.results[0]))):
                        candidate.attributes[INLINED] = UnitAttr()


def is_narrow(op: Operation) -> bool:
    """Whether an op is a matmul that takes as long as reading its weights."""
    if isinstance(op, TiledDot):
        return op.params["rows"] <= FEW_ROWS
    if not isinstance(op, Dot):
        return False
    shape = tensor_of(op.results[0].type).shape
    shape = shape if chosen_by(op) is None else shape[1:]
    return worth_streaming(tensor_of(op.results[0].type).dtype, shape, tensor_of(op.operands[0].type).shape[-1])
