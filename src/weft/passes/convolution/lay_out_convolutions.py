"""Let a library convolve over channels that lie innermost, which is how a GPU's tensor cores take them.

Without this the library brings every operand into that order, and the result back, in kernels of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size
from weft.ir.types import bf16, f16, tensor_of
from weft.ops.graph import FuncOp, OpaqueOp
from weft.ops.layouts import ordered
from weft.passes.grouping.build_groups import strides_of

_GROUPS = {"aten::convolution": 8, "aten::convolution_backward": 9}
"""Where the number of groups stands among a call's arguments."""
_WEIGHTS = {"aten::convolution": 1, "aten::convolution_backward": 2}


def is_laid_out(groups: object, weights: Sequence[Size]) -> bool:
    """Whether a convolution is taken: all channels mix, or each stays by itself (depthwise)."""
    return groups == 1 or (len(weights) == 4 and weights[1] == 1 and groups == weights[0])


@dataclass(frozen=True)
class LayOutConvolutions(ModulePass):
    """The call of a library says how its operands are to lie, and how its result will:

    %y = graph.opaque %x, %w           →     %y = graph.opaque %x (strides 48, 1, 12, 3), %w (strides ...)
                                                 {result_strides = [[64, 1, 16, 4]]}

    Of convolutions of 16-bit floats along two or three dimensions, all of whose channels mix, or, along two, each by
    itself; what was already laid out stays as it is. Along one dimension the library would take slow kernels.
    """

    name: ClassVar[str] = "lay_out_convolutions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for call in function.block.ops:
                    if isinstance(call, OpaqueOp) and call.target.data in _GROUPS:
                        _lay_out(call)


def _lay_out(call: OpaqueOp) -> None:
    text: dict[str, Any] = json.loads(call.arguments.data)
    weights = tensor_of(call.operands[_WEIGHTS[call.target.data]].type)
    if not is_laid_out(text["args"][_GROUPS[call.target.data]], weights.shape):
        return
    given: dict[str, list[str]] = text.get("strides", {})
    for place, operand in enumerate(call.operands):
        if (strides := _channels_innermost(operand)) is not None:
            given.setdefault(str(place), [str(stride) for stride in strides])
    if not given:
        return
    call.arguments = type(call.arguments)(json.dumps({**text, "strides": given}))
    known = strides_of(call, "result_strides", len(call.results))
    strides = [each or _channels_innermost(result) for each, result in zip(known, call.results, strict=True)]
    call.attributes["result_strides"] = to_attribute(tuple(strides))


def _channels_innermost(value: SSAValue) -> tuple[Size, ...] | None:
    """The strides of a tensor [N, C, ...] whose channels lie innermost; None where that is not worth while."""
    tensor = tensor_of(value.type)
    if tensor.rank not in (4, 5) or tensor.dtype not in (bf16, f16):
        return None
    return ordered(tensor.shape, (0, *range(2, tensor.rank), 1)).strides
