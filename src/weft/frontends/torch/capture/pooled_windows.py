"""Fractional max pooling by gathers: windows of one size that begin at places drawn before.

`decompositions` traces it where a graph has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fractional_max_pool2d(
    x: Tensor, window: Sequence[int], sizes: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest of each window and its place; the samples are those of columns, then of rows."""
    return _pooled(x, window, sizes, samples.flip(-1))


def fractional_max_pool3d(
    x: Tensor, window: Sequence[int], sizes: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest of each window and its place; the samples are those of planes, rows and columns."""
    return _pooled(x, window, sizes, samples)


def fractional_max_pool_backward(
    grad: Tensor, x: Tensor, window: Sequence[int], sizes: Sequence[int], places: Tensor
) -> Tensor:
    """The gradients at the places where the largest were."""
    rank = len(window)
    flat = x.new_zeros(x.shape).flatten(-rank)
    return flat.scatter_add(-1, places.flatten(-rank), grad.flatten(-rank)).view(x.shape)


def _pooled(x: Tensor, window: Sequence[int], sizes: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    rank = len(window)
    whole = x if x.dim() == rank + 2 else x.unsqueeze(0)
    batch, spatial = whole.shape[:2], whole.shape[2:]
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    for d in range(rank):
        starts = _starts(samples[..., d].to(x.dtype), spatial[d], sizes[d], window[d])
        reach = starts.unsqueeze(-1) + torch.arange(window[d], device=x.device)
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = sizes[d], window[d]
        places = places * spatial[d] + reach.view(*samples.shape[:-1], *shape)
    places = places.expand(*batch, *sizes, *window).flatten(-rank)
    values = torch.gather(whole.flatten(2), 2, places.flatten(2)).view(places.shape)
    largest, which = values.max(-1)
    found = torch.gather(places, -1, which.unsqueeze(-1)).squeeze(-1)
    return (largest, found) if x.dim() == rank + 2 else (largest.squeeze(0), found.squeeze(0))


def _starts(sample: Tensor, size: int, count: int, window: int) -> Tensor:
    """Where windows begin along one dimension; the last ends with it."""
    last = torch.full((*sample.shape, 1), size - window, dtype=torch.int64, device=sample.device)
    if count == 1:
        return last
    step = (size - window) / (count - 1)
    numbers = torch.arange(count - 1, dtype=sample.dtype, device=sample.device)
    sample = sample.unsqueeze(-1)
    begun = ((numbers + sample) * step).to(torch.int64) - (sample * step).to(torch.int64)
    return torch.cat([begun, last], -1)
