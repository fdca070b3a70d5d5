"""Which kernel an attention becomes. What a machine has no use for is not imported."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.ir.types import tensor_of
from weft.lower.attention.attention import AttentionLowering
from weft.lower.emit.blocked import epilogue_refusal
from weft.lower.lowered import Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.schedule.schedule import is_tangent_alone
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.attention import WIDEST_HEAD, AnyAttention
from weft.ops.matmul.attention_dropout import AttentionWithDropout
from weft.ops.matmul.attention_tangent import AttentionWithTangent


def lower_attention(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that holds one attention, with its operands and results in the given layouts."""
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    ops = group.block.ops
    op = next(op for op in ops if isinstance(op, AnyAttention | AttentionWithTangent | AttentionWithDropout))
    lowering = _lowering_of(group, name, layouts, outputs, op, machine)
    refused = epilogue_refusal(group, op.results) or lowering.prepare()
    return lowering.lowered(inputs) if refused is None else refused


def _lowering_of(
    group: GroupOp,
    name: str,
    layouts: dict[SSAValue, StridedLayout],
    outputs: Sequence[StridedLayout],
    op: AnyAttention | AttentionWithTangent | AttentionWithDropout,
    machine: Machine,
) -> AttentionLowering:
    """How an attention is computed: in tensor cores' tiles, over all keys or parts of them, or in vectors."""
    if isinstance(op, AttentionWithTangent):
        return _tangent_lowering(op, machine)(group, name, layouts, outputs, op, machine)
    if machine.capabilities.matrix_units:
        from weft.lower.attention.flash_attention import FlashLowering, is_flash
        from weft.lower.attention.split_kv import SplitKvLowering, parts_of

        if is_flash(op):
            if isinstance(op, AttentionWithDropout):
                return FlashLowering(group, name, layouts, outputs, op, machine)
            parts = parts_of(op, group, machine)
            if parts > 1 or tensor_of(op.results[0].type).shape[-2] == 1:
                return SplitKvLowering(group, name, layouts, outputs, op, machine, parts)
            return FlashLowering(group, name, layouts, outputs, op, machine)
    return AttentionLowering(group, name, layouts, outputs, op, machine)


def _tangent_lowering(op: AttentionWithTangent, machine: Machine) -> type[AttentionLowering]:
    """How an attention is computed with its tangent: in tensor cores' tiles, by one kernel or two, or in vectors."""
    from weft.lower.attention.attention_tangent import FlashTangentLowering, TangentLowering
    from weft.lower.attention.flash_attention import is_flash

    widths = tensor_of(op.operands[0].type).shape[-1], tensor_of(op.results[0].type).shape[-1]
    fits = all(isinstance(width, int) and width <= WIDEST_HEAD for width in widths)
    if not (machine.capabilities.matrix_units and is_flash(op) and fits):
        return TangentLowering
    if not is_tangent_alone(widths[1], machine):
        return FlashTangentLowering
    from weft.lower.attention.tangent_alone import TangentAlone

    return TangentAlone
