"""Donated buffers: what a forward graph saved for its gradient, and the backward graph may write over."""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import TracingContext

DONATED = "weft.donated"
"""Under which a captured graph says which of its placeholders are donated, by position."""
_LEAST_BYTES = 1 << 16
"""Below this, what is saved is less than what it costs to see whose the memory is."""


def is_worth_it(traced: torch.Tensor) -> bool:
    """Whether to write over such a tensor saves memory to speak of; of complex numbers programs get views."""
    sizes: list[Any] = list(traced.shape)
    if traced.is_complex() or any(not isinstance(size, int) for size in sizes):
        return not traced.is_complex()
    return traced.numel() * traced.element_size() >= _LEAST_BYTES


def take_donated() -> tuple[int, ...]:
    """Those of the backward graph that is compiled now: AOTAutograd knows which saved tensors share memory with no
    argument, output or gradient.

    It is told that there are none: else it would refuse to let a graph be retained, which costs copies here. So it
    would where it was not to look for any, but is when a gradient is computed.
    """
    context = TracingContext.try_get()
    metadata: Any = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    found: list[int] = metadata.bw_donated_idxs or []
    places, metadata.bw_donated_idxs = tuple(found), found
    found.clear()
    return places
