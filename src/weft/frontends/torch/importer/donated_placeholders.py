"""Donated buffers: what a forward graph saved for its gradient, and the backward graph may write over."""

from __future__ import annotations

from torch._guards import TracingContext

DONATED = "weft.donated"
"""Under which a captured graph says which of its placeholders are donated, by position."""


def take_donated() -> tuple[int, ...]:
    """Those of the backward graph that is compiled now: AOTAutograd knows which saved tensors share memory with no
    argument, output or gradient.

    It is told that there are none: else it would refuse to let a graph be retained, which costs copies here.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    found: list[int] = getattr(metadata, "bw_donated_idxs", None) or []
    places = tuple(found)
    found.clear()
    return places
