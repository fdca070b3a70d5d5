"""Lets backward graphs compute again what is large and cheap: repeated keys and values, masks of dropout, wider types.

    %r = expand %k (4, 8, 4, 2048, 64)   of (4, 8, 1, 2048, 64)
    %c = clone %r                        ← is not kept: what it repeats is, four times smaller
    %y = attention %q, %c, …

    %u = weft.uniform %seed (8, 1024, 768)
    %m = lt %u, 0.9                      ← is not kept: the seed is, of eight bytes

    %w = _to_copy %x, f32                ← is not kept: %x of bf16 is, of half the bytes
    %y = layer_norm %w, …

Torch's partitioner keeps whatever an operator of the backward reads that it does not fuse. Attention that knows groups
of heads (GQA, `repeat_kv`) reads what is repeated once (`passes/attention/pack_gqa.py`), and any other gets a copy that
is made again. It also counts what an operator that it does not fuse reads as half the price of what others read: a norm
of f32 would have it keep the wide copy that autocast makes for it.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from weft.backends.target import CostFacts
from weft.frontends.torch.capture.checkpoint_marks import mark, policy_of
from weft.frontends.torch.remat.pool_offsets import keep_offsets
from weft.frontends.torch.remat.recompute_operands import recompute_operands
from weft.frontends.torch.remat.write_out_norms import write_out_norms

_aten: Any = torch.ops.aten


def recompute_cheap(joint: fx.GraphModule, costs: CostFacts) -> None:
    """Mark copies of repeated tensors, copies in a wider type, random numbers made of a seed, places of pooling and, by
    these costs, operands of products as such that the backward makes again.

    Where the user has said what is to be computed again, that stays as it is.
    """
    if any(policy_of(node) is not None for node in joint.graph.nodes):
        return
    copies = joint.graph.find_nodes(op="call_function", target=_aten.clone.default)
    repeats = [node for node in copies if isinstance(node.args[0], fx.Node) and _is_repeated(node.args[0])]
    numbers = joint.graph.find_nodes(op="call_function", target=torch.ops.weft.uniform.default)
    wider = filter(_is_wider, joint.graph.find_nodes(op="call_function", target=_aten._to_copy.default))
    for node in (*repeats, *wider, *numbers):
        mark(node, CheckpointPolicy.PREFER_RECOMPUTE)
    keep_offsets(joint)
    recompute_operands(joint, costs)
    write_out_norms(joint.graph)


def _is_repeated(node: fx.Node) -> bool:
    """Whether a node shows elements again and again, which a copy of it would have as often."""
    value: Any = node.meta.get("val")
    if node.target is not _aten.expand.default or not isinstance(value, Tensor):
        return False
    source: Any = node.args[0]
    known: Any = source.meta.get("val") if isinstance(source, fx.Node) else None
    sizes: list[Any] = [*value.shape, *(known.shape if isinstance(known, Tensor) else (None,))]
    if not all(isinstance(size, int) for size in sizes):
        return False
    return known.numel() > 1 and value.numel() > known.numel()


def _is_wider(node: fx.Node) -> bool:
    """Whether a node is what another of a shorter type holds, on the same device."""
    source: Any = node.args[0]
    made, given = node.meta.get("val"), source.meta.get("val")
    if not isinstance(made, Tensor) or not isinstance(given, Tensor) or made.device != given.device:
        return False
    return made.dtype.is_floating_point and given.dtype.is_floating_point and made.itemsize > given.itemsize
