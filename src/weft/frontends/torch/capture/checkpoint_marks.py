"""What the metadata of a graph's node says of being computed again in the backward, as torch's partitioner reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

_POLICY, _REGION = "recompute", "ac_graph_id"
"""Whether a node is computed again, and in which region the user said so."""


def policy_of(node: fx.Node) -> CheckpointPolicy | None:
    """What is said of a node, by a user's checkpoint or by `mark`."""
    return node.meta.get(_POLICY)


def mark(node: fx.Node, policy: CheckpointPolicy) -> None:
    """Say it of a node that stands in no checkpoint."""
    node.meta |= {_POLICY: policy, _REGION: 0}


def save_where_it_stands(node: fx.Node) -> None:
    """Say of a node in a checkpoint that it is kept."""
    node.meta[_POLICY] = CheckpointPolicy.MUST_SAVE


def without_marks(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a node outside of all checkpoints."""
    return {key: value for key, value in meta.items() if key not in (_POLICY, _REGION)}
