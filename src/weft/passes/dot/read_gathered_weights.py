"""Let matmuls read the matrices that are chosen for their rows where these lie, instead of copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp
from weft.ops.indexing.index import Take
from weft.ops.matmul.dot import Dot
from weft.passes.claim_libraries import worth_streaming
from weft.passes.grouping.build_groups import INLINED
from weft.passes.simplify.constant_values import made_by


def chosen_by(dot: Dot) -> Take | None:
    """What chooses the weights [R, N, K] of a matmul with rows [R, 1, K], if something does."""
    view = made_by(dot.operands[1], "graph.permute")
    source = view.operands[0] if view is not None and view.params["dims"] == (0, 2, 1) else None
    if not isinstance(source, OpResult) or not isinstance(source.op, Take):
        return None
    weights, places = (tensor_of(operand.type) for operand in source.op.operands)
    one = tensor_of(dot.operands[0].type).shape[1] == 1
    fits = source.op.params["dim"] == 0 and places.rank == 1 and weights.rank == 3 and weights.is_static
    return source.op if fits and one else None


def weights_of(dot: Dot) -> SSAValue | None:
    """The weights [N, K] that a matmul multiplies with, or [E, N, K] where they are chosen from these."""
    take = chosen_by(dot)
    if take is not None:
        return take.operands[0]
    view = made_by(dot.operands[1], "graph.permute")
    return view.operands[0] if view is not None and view.params["dims"] == (1, 0) else None


@dataclass(frozen=True)
class ReadGatheredWeights(ModulePass):
    """%c = graph.take %w, %chosen                      %c = graph.take %w, %chosen {weft.inlined}
    %y = graph.dot %x, (graph.permute %c)         →     %y = graph.dot %x, (graph.permute %c)
    """

    name: ClassVar[str] = "read_gathered_weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for dot in [each for each in function.block.ops if isinstance(each, Dot)]:
                    take = chosen_by(dot)
                    if take is not None and _is_streamed(dot) and _is_read_once(take.results[0]):
                        take.attributes[INLINED] = UnitAttr()


def _is_streamed(dot: Dot) -> bool:
    """Whether a matmul takes as long as it takes to read the matrices."""
    result = tensor_of(dot.results[0].type)
    return worth_streaming(result.dtype, result.shape[1:], tensor_of(dot.operands[0].type).shape[-1])


def _is_read_once(value: SSAValue) -> bool:
    return value.has_one_use() and all(use.operation.results[0].has_one_use() for use in value.uses)
