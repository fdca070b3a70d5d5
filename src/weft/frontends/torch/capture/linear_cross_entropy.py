"""Torch's cross-entropy of a projection in chunks of rows, `torch_nn::_linear_cross_entropy_batch_chunked`.

It gives the loss, and its gradients, so that no chunk's logits are kept or made again. `decompositions` traces it chunk
by chunk where a graph has it.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MOST_CHUNKS = 64
"""Chunks that are written out: of more, torch's own loop is compiled sooner."""


def linear_cross_entropy_of_chunks(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weights: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    chunk: int,
    policy: str,
    wide: torch.dtype,
    retains: bool,
    of_x: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, ...]:
    """The loss, and its gradients that are asked for; those that are not are empty."""
    rows = x.shape[0]
    starts = range(0, rows, max(chunk, 1))
    if x.dtype not in (torch.float32, torch.float64) or {weight.dtype, wide} != {x.dtype} or label_smoothing:
        kinds = f"{x.dtype} by {weight.dtype} in {wide}"
        raise NotImplementedError(f"a projection of {kinds}, smoothed by {label_smoothing}")
    if reduction not in ("mean", "sum") or len(starts) > _MOST_CHUNKS:
        raise NotImplementedError(f"a loss of {len(starts)} chunks, by their {reduction}")
    counted = target != ignore_index
    labels = torch.where(counted, target, 0)
    factors = counted.to(x.dtype) if class_weights is None else torch.where(counted, class_weights[labels], 0)
    if reduction == "mean":
        shares = factors / factors.sum()
    else:
        shares = factors
    loss, to_weight, to_bias = x.new_zeros(()), torch.zeros_like(weight), x.new_zeros(weight.shape[0])
    to_rows: list[Tensor] = []
    for start in starts:
        part = slice(start, start + chunk)
        logits = torch.nn.functional.linear(x[part], weight, bias)
        scores = torch.log_softmax(logits, 1)
        label, share = labels[part].unsqueeze(1), shares[part].unsqueeze(1)
        loss = loss - (scores.gather(1, label) * share).sum()
        here = torch.arange(weight.shape[0], device=x.device) == label
        change = (scores.exp() - here.to(x.dtype)) * share
        to_rows.append(change @ weight)
        to_weight = to_weight + change.t() @ x[part]
        to_bias = to_bias + change.sum(0)
    empty: Any = [(0, 0), (0, 0), (0,)]
    made = [torch.cat(to_rows) if to_rows else x.clone(), to_weight, to_bias]
    asked = zip(made, (of_x, of_weight, of_bias), empty, strict=True)
    return (loss, *(each if wanted else x.new_empty(shape) for each, wanted, shape in asked))
