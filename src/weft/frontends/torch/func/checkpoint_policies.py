"""What `checkpoint(save=..., offload=...)` says of torch's operators in functions that `torch.compile` traces.

Torch's selective checkpoints mark the nodes of the joint graph, which is cut by these marks (`remat/memory_budget.py`).
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from weft.ops.base import REGISTRY
from weft.passes.transform.checkpoint import DOTS, EVERYTHING

_SAVED, _AGAIN = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
_OFFLOADED: CheckpointPolicy = getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", _SAVED)  # which torch 2.12 lacks
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear", "_grouped_mm")
_ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
_DOTS = {*_PRODUCTS, "_scaled_mm", "convolution", *(f"_scaled_dot_product_{name}" for name in _ATTENTION)}
"""Products, convolutions and attention, by torch's names."""


def contexts(save: tuple[str, ...], offload: tuple[str, ...]) -> Callable[[], Any]:
    """What torch's checkpoint asks for the policy of operators."""
    return partial(_contexts, save, offload)


def _contexts(save: tuple[str, ...], offload: tuple[str, ...]) -> Any:
    return create_selective_checkpoint_contexts(partial(_policy, save, offload))


def _policy(
    save: tuple[str, ...], offload: tuple[str, ...], ctx: Any, operator: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    words = _words(operator)
    if operator is torch.ops.weft.named.default:
        words = words | {args[1]}
    if not words.isdisjoint(offload):
        return _OFFLOADED
    return _AGAIN if words.isdisjoint(save) else _SAVED


@cache
def _words(operator: Any) -> frozenset[str]:
    """What an operator's results may be called."""
    words = {EVERYTHING, *_ops_of().get(str(operator).removeprefix("aten."), ())}
    if getattr(operator, "_opname", "") in _DOTS:
        words.add(DOTS)
    return frozenset(words)


@cache
def _ops_of() -> dict[str, list[str]]:
    """The ops of the graph dialect, by torch's operators that are the same."""
    found: dict[str, list[str]] = {}
    for name, spec in REGISTRY.specs.items():
        for operator in spec.aten:
            found.setdefault(operator, []).append(name)
    return found
