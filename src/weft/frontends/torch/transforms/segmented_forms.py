"""Forms of operators over segments, bags and chunks, whose gradients torch has no derivatives of.

segment_reduce(x, "sum")  ─►  sums of a table of segments and rows        embedding_bag  ─►  embedding, and the same
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MOST_ELEMENTS = 1 << 22
"""Elements of a table of segments and rows."""


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """By a table of what each segment has: torch's gradient has no gradient."""
    if lengths is not None:
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    elif offsets is not None:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    else:
        starts = ends = torch.empty(0)
    if indices is not None or starts.shape[-1] * data.numel() > _MOST_ELEMENTS or starts.dim() != axis + 1:
        options: Any = {"lengths": lengths, "indices": indices, "offsets": offsets}
        return torch.segment_reduce(data, reduce, **options, axis=axis, unsafe=unsafe, initial=initial)
    rows = torch.arange(data.shape[axis], device=data.device)
    inside = (rows >= starts.unsqueeze(-1)) & (rows < ends.unsqueeze(-1))
    inside = inside.view(*inside.shape, *(1 for _ in data.shape[axis + 1 :]))
    return _combined(data.unsqueeze(axis), inside, reduce, initial, axis + 1)


def _combined(data: Tensor, inside: Tensor, reduce: str, initial: float | None, dim: int) -> Tensor:
    """What of a table is inside, combined along a dimension; what has nothing is the initial number."""
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[reduce]
    table, count = torch.where(inside, data, neutral), inside.sum(dim)
    if reduce in ("max", "min"):
        found = table.amax(dim) if reduce == "max" else table.amin(dim)
        if initial is None:
            return found
        return found.clamp_min(initial) if reduce == "max" else found.clamp_max(initial)
    if reduce == "prod":
        return table.prod(dim) * (1.0 if initial is None else initial)
    found = table.sum(dim) + (0.0 if initial is None else initial)
    if reduce == "sum":
        return found
    empty = math.nan if initial is None else initial
    return torch.where(count == 0, empty, found / count.clamp_min(1))


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """By rows and a table of bags: torch's gradient of the weights of samples has no gradient."""
    if not weight.is_floating_point():
        input, weight = weight, input
    bags = input.shape[0] if offsets is None else offsets.shape[0]
    size = bags * input.numel() * weight.shape[1]
    if max_norm is not None or scale_grad_by_freq or mode == "max" or size > _MOST_ELEMENTS or not input.numel():
        options: Any = {"per_sample_weights": per_sample_weights, "include_last_offset": include_last_offset}
        options |= {"max_norm": max_norm, "norm_type": norm_type, "scale_grad_by_freq": scale_grad_by_freq}
        return functional.embedding_bag(
            input, weight, offsets, mode=mode, sparse=sparse, padding_idx=padding_idx, **options
        )
    rows = functional.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    kept = torch.ones_like(input, dtype=torch.bool)
    if padding_idx is not None:
        kept = input != padding_idx % weight.shape[0]
    if offsets is None:
        return _combined(rows, kept.unsqueeze(-1), mode, 0.0, 1)
    ends = torch.cat([offsets[1:], offsets.new_full((1,), input.shape[0])])
    starts, ends = (offsets[:-1], offsets[1:]) if include_last_offset else (offsets, ends)
    places = torch.arange(input.shape[0], device=input.device)
    inside = (places >= starts[:, None]) & (places < ends[:, None]) & kept
    return _combined(rows.unsqueeze(0), inside.unsqueeze(-1), mode, 0.0, 1)


def linear_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int | None,
    label_smoothing: float,
    *chunking: Any,
) -> tuple[Tensor, ...]:
    """Logits and their loss: torch computes gradients of chunks beside the loss, which have none."""
    logits = functional.linear(x, linear_weight, bias)
    options: Any = {"weight": weight, "reduction": reduction, "label_smoothing": label_smoothing}
    return (
        functional.cross_entropy(
            logits, target, ignore_index=-100 if ignore_index is None else ignore_index, **options
        ),
    )


def linear_cross_entropies(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int | None,
    *chunking: Any,
) -> Tensor:
    """The same for each row."""
    return linear_cross_entropy(x, linear_weight, target, bias, weight, "none", ignore_index, 0.0)[0]
