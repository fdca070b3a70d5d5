"""The gradients of attention lie as what they are the gradients of: matmuls of projections read them without copies."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.types import Tensor, bf16, f32
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.matmul.attention_gradients import AttentionGradients
from weft.passes.attention.lay_out_gradients import LayOutGradients
from weft.passes.choose_layouts import ChooseLayouts
from weft.passes.grouping.build_groups import LIES
from weft.passes.grouping.group_into_kernels import GroupIntoKernels

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 256, 64
SIDE = HEADS * WIDTH


def gradients(passes: Any, members: int, *, rows: bool) -> ModuleOp:
    """Those of [batch, heads, length, width]; `rows` where heads lie side by side in memory."""
    shared = HEADS // members
    counts = {"grad": HEADS, "q": HEADS, "k": shared, "v": shared}
    tensors = {name: Tensor(bf16, (BATCH, count, LENGTH, WIDTH)) for name, count in counts.items()}
    kept = Tensor(f32, (BATCH, shared, members, LENGTH))

    def body(b: GraphBuilder, grad: SSAValue, q: SSAValue, k: SSAValue, v: SSAValue, *numbers: SSAValue) -> Any:
        many = (BATCH, shared, members, LENGTH, WIDTH)
        grad, q = (b.reshape(each, shape=many) for each in (grad, q))
        found = b.attention_gradients(grad, q, k, v, *numbers, causal=True, scale=0.125)
        return [b.neg(each) for each in found]

    module = passes.built({**tensors, "lse": kept, "means": kept}, body)
    strides = [(LENGTH * count * WIDTH, WIDTH, count * WIDTH, 1) if rows else None for count in counts.values()]
    passes.function(module).attributes["arg_strides"] = to_attribute((*strides, None, None))
    return module


@pytest.mark.parametrize("members", [1, 2])
def test_gradients_lie_as_their_operands(passes: Any, members: int) -> None:
    module = gradients(passes, members, rows=True)
    LayOutGradients().apply(Context(), module)
    (op,) = [each for each in module.walk() if isinstance(each, AttentionGradients)]
    on_queries, on_keys, on_values = from_attribute(op.attributes[LIES])  # type: ignore[misc]
    shared = SIDE // members
    assert tuple(on_keys) == tuple(on_values) == (LENGTH * shared, WIDTH, shared, 1)
    batch, _, member, row, column = on_queries
    assert (batch, row, column) == (LENGTH * SIDE, SIDE, 1) and (members == 1 or member == WIDTH)


def test_kernels_write_them_so(passes: Any) -> None:
    module = gradients(passes, 2, rows=True)
    for each in (LayOutGradients(), GroupIntoKernels(), ChooseLayouts()):
        each.apply(Context(), module)
    (group,) = [
        each
        for each in module.walk()
        if isinstance(each, GroupOp) and any(isinstance(op, AttentionGradients) for op in each.block.ops)
    ]
    (op,) = [op for op in group.block.ops if isinstance(op, AttentionGradients)]
    assert group.attributes["result_strides"] == op.attributes[LIES]


def test_what_lies_head_by_head_stays_so(passes: Any) -> None:
    module = gradients(passes, 1, rows=False)
    LayOutGradients().apply(Context(), module)
    assert all(LIES not in each.attributes for each in module.walk())
