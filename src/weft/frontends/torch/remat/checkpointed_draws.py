"""Random operators in checkpoints: which of them draw numbers, and how the backward comes by the same ones.

torch's partitioner wraps what is tagged as random and computed again, so that it starts from the same state of the
generator. Attention without dropout is tagged and draws nothing: wrapped, it could be no kernel of ours. On a GPU the
state would be an argument of the graph that is no tensor; what is drawn there is kept. So is what torch's own memory
budget (`torch._functorch.config.activation_memory_budget`) would compute again: that it does not wrap.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._functorch import partitioners
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from weft.frontends.torch.capture.checkpoint_marks import policy_of, save_where_it_stands, without_marks

_PATCHED = threading.RLock()
_OF_BACKWARD = ("is_backward", "must_be_in_backward")
"""What torch's tracing calls nodes of a backward that is traced."""


def keep_draws_on_gpus(graph: fx.Graph) -> None:
    """Keep what a GPU draws in checkpoints of a joint graph: masks of dropout, small beside what they are made for."""
    for node in graph.nodes:
        if _is_drawn_again(node) and _is_on_gpu(node):
            save_where_it_stands(node)
            for user in node.users:
                if not _is_tensor(node):  # its results are what can be kept
                    save_where_it_stands(user)


@contextmanager
def states_of_draws_alone() -> Generator[None]:
    """Let torch's partitioner hand on states of generators only for what draws numbers; in this thread alone."""
    with _PATCHED:
        owner, original = threading.get_ident(), partitioners.functionalize_rng_ops

        def functionalize(joint: fx.GraphModule, forward: Any, backward: Any, *given: Any, **named: Any) -> Any:
            if threading.get_ident() != owner:
                return original(joint, forward, backward, *given, **named)
            marked = {node: node.meta for node in joint.graph.nodes if is_tagged_random(node) and not draws(node)}
            for node, meta in marked.items():
                node.meta = without_marks(meta)
            try:
                if not any(map(_is_drawn_again, joint.graph.nodes)):
                    return forward, backward
                return original(joint, forward, backward, *given, **named)
            finally:
                for node, meta in marked.items():
                    node.meta = meta

        with patch.object(partitioners, "functionalize_rng_ops", functionalize):
            yield


@contextmanager
def kept_draws() -> Generator[None]:
    """Let torch's partitioner keep what is drawn outside of checkpoints, whatever its budget; in this thread alone."""
    with _PATCHED:
        owner, original = threading.get_ident(), partitioners.choose_saved_values_set

        def choose(graph: fx.Graph, info: Any, *given: Any, **named: Any) -> list[fx.Node]:
            kept = original(graph, info, *given, **named)
            if threading.get_ident() != owner:
                return kept
            drawn = [node for node in graph.nodes if draws(node) and not _is_drawn_again(node)]
            held = [each for node in drawn for each in ([node] if _is_tensor(node) else node.users)]
            return list(dict.fromkeys([*kept, *(node for node in held if _is_of_forward(node, info))]))

        with patch.object(partitioners, "choose_saved_values_set", choose):
            yield


def draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers: attention does with dropout only."""
    return is_tagged_random(node) and _argument(node, "dropout_p") != 0


def is_tagged_random(node: fx.Node) -> bool:
    """Whether torch says of an operator that it may draw."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _is_drawn_again(node: fx.Node) -> bool:
    return policy_of(node) in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE) and draws(node)


def _argument(node: fx.Node, name: str) -> Any:
    """What a call hands to a parameter; None where it has none of this name."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, parameter in enumerate(node.target._schema.arguments):
        if parameter.name == name:
            default = node.kwargs.get(name, parameter.default_value)
            return node.args[place] if place < len(node.args) else default
    return None


def _is_of_forward(node: fx.Node, info: Any) -> bool:
    """Whether a forward graph may give a value: what only the backward reads, as noise, is no part of the results."""
    return node not in info.required_bw_nodes and node.meta.get("partitioner_tag") not in _OF_BACKWARD


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_on_gpu(node: fx.Node) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in tree_leaves(node.meta.get("val")))
