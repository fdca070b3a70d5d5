"""Which calls of attention, and of its gradients, are kernels of Weft's on a GPU's tensor cores."""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.importer.operands import operands_of
from weft.passes.own_kernels import owns_attention, owns_attention_gradients, owns_packed_attention

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class _Library:
    """Forward attention of a library: where its dropout stands, and which of its results a kernel of Weft's gives.

    One that lets the last query see the last key, where keys are more, says where it is causal.
    """

    dropout: int
    results: frozenset[int]
    at_the_end: int | None = None


_ATTENTIONS: dict[Any, _Library] = {
    getattr(_aten, name).default: library
    for name, library in (
        ("_scaled_dot_product_flash_attention", _Library(3, frozenset({0}), 4)),
        ("_scaled_dot_product_efficient_attention", _Library(5, frozenset({0}))),
        ("_scaled_dot_product_cudnn_attention", _Library(5, frozenset({0, 1, 6, 7}))),
    )
    if hasattr(_aten, name)
}


def is_own_attention(node: fx.Node) -> bool:
    """Whether attention is a kernel of Weft's on a GPU's tensor cores."""
    library = _ATTENTIONS.get(node.target)
    if library is None or set(node.kwargs) - {"scale"}:
        return False
    if any(user.args[1] not in library.results for user in node.users if user.users):
        return False
    options = {number: node.args[number] for number in range(3, len(node.args))}
    if options.get(library.dropout, 0.0) != 0.0:
        return False
    operands = operands_of(*(each.meta["val"] for each in node.args[:3]))  # type: ignore[union-attr]
    if operands is None:
        return False
    query, key, value = operands
    if library.at_the_end is not None and options.get(library.at_the_end) and query.shape[-2] != key.shape[-2]:
        return False
    most = query.shape[-2] * key.shape[-2]
    small = all(_is_made_of(option, most) for option in options.values() if isinstance(option, fx.Node))
    return owns_attention(query, key, value, masks_are_small=small)


def is_dropout_attention(node: fx.Node) -> bool:
    """Whether a node is attention whose weights a kernel of Weft's drops, or its gradients: no library has them."""
    return str(node.target) in ("weft.attention_with_dropout.default", "weft.dropout_attention_gradients.default")


_PACKED = ("aten::_flash_attention_forward", "torch_attn::_varlen_attn")


def is_own_packed(node: fx.Node) -> bool:
    """Whether attention over sequences that lie one after the other is a kernel of Weft's."""
    name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""
    if name not in _PACKED:
        return False
    operands = operands_of(*(each.meta["val"] for each in node.args[:3]))  # type: ignore[union-attr]
    return operands is not None and owns_packed_attention(*operands)


def _is_made_of(mask: fx.Node, most: int) -> bool:
    """Whether a mask is computed, of tensors of so many elements at most: one for all heads, or less."""
    left, seen = [mask], {mask}
    while left:
        node = left.pop()
        inputs = node.all_input_nodes
        meta = node.meta.get("val")
        if not inputs and isinstance(meta, torch.Tensor) and node.op != "call_function" and meta.numel() > most:
            return False
        left += [each for each in inputs if each not in seen]
        seen.update(inputs)
    return True


@dataclass(frozen=True)
class _Backward:
    """The backward of a library's attention: where its mask and its dropout stand (whether it is causal follows), and
    whether it is faster where sequences are short, or lets the last query see the last key."""

    mask: int | None
    dropout: int
    is_fast: bool = False
    at_the_end: bool = False


_BACKWARDS: dict[Any, _Backward] = {
    getattr(_aten, name).default: library
    for name, library in (
        ("_scaled_dot_product_flash_attention_backward", _Backward(None, 10, at_the_end=True)),
        ("_scaled_dot_product_cudnn_attention_backward", _Backward(8, 13, is_fast=True)),
    )
    if hasattr(_aten, name)
}


def is_own_backward(node: fx.Node) -> bool:
    """Whether the gradients of attention are kernels of Weft's: where those are faster than the library."""
    library = _BACKWARDS.get(node.target)
    if library is None or set(node.kwargs) - {"scale"} or node.args[library.dropout] != 0.0:
        return False
    if library.mask is not None and node.args[library.mask] is not None:
        return False
    *tensors, _, kept = (each.meta["val"] for each in node.args[:6])  # type: ignore[union-attr]
    operands = operands_of(*tensors, kept)
    if operands is None:
        return False
    given, query, key, value, kept = operands
    if library.at_the_end and node.args[library.dropout + 1] and query.shape[-2] != key.shape[-2]:
        return False
    return owns_attention_gradients((given, query, key, value), kept, library_is_fast=library.is_fast)
