"""Gathers of parameters that a backward repeats, so that whole parameters do not lie in memory until then."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from weft.frontends.torch.capture.checkpoint_marks import mark

GATHERS_AGAIN = "weft.gathers_again"
"""Stands in the metadata of calls which the backward is to repeat instead of keeping what they give."""


def mark_gathers(joint: fx.GraphModule) -> None:
    """Tell the partitioner of a joint graph which calls to repeat."""
    for node in joint.graph.nodes:
        marks: Any = node.meta.get("custom")
        if node.op == "call_function" and marks and GATHERS_AGAIN in marks:
            mark(node, CheckpointPolicy.MUST_RECOMPUTE)
