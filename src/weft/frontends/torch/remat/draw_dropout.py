"""Attention with dropout on a GPU, in training: kernels of Weft's draw its mask, forward and backward, from a seed.

    %o, %l, .., %s, %n = cudnn_attention %q, %k, %v, 0.1         →    %s = weft.seed cuda
                                                                      %o, %l = weft.attention_with_dropout .. %s
    %dq, .. = cudnn_attention_backward .., %o, %l, %s, %n, 0.1   →    %dq, .. = weft.dropout_attention_gradients .. %s

The libraries add up gradients in whatever order their blocks end, and each has a mask of its own: what was drawn
forward only it can draw again. So both calls are replaced, or none, before a graph is cut into forward and backward.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.capture import attention_dropout as operators
from weft.frontends.torch.capture.checkpoint_marks import without_marks
from weft.frontends.torch.importer.operands import operands_of
from weft.passes.own_kernels import owns_attention_with_dropout

_ops: Any = torch.ops


@dataclass(frozen=True)
class _Library:
    """Attention of a library: what gives its gradients, and where its arguments and results stand."""

    backward: Any
    bias: int | None
    dropout: int
    states: tuple[int, int]
    """The results that its backward draws the same mask of."""
    given: tuple[int, int]
    """Where its backward takes its dropout, and whether it is causal."""
    states_given: tuple[int, int]
    at_the_end: bool = False
    """Whether causal attention of fewer queries than keys is aligned at the end."""


_FLASH = _ops.aten._scaled_dot_product_flash_attention_backward.default
_CUDNN = _ops.aten._scaled_dot_product_cudnn_attention_backward.default
_LIBRARIES: dict[Any, _Library] = {
    getattr(_ops.aten, f"_scaled_dot_product_{name}_attention").default: library
    for name, library in (
        ("flash", _Library(_FLASH, None, 3, (6, 7), (10, 11), (12, 13), at_the_end=True)),
        ("cudnn", _Library(_CUDNN, 3, 5, (6, 7), (13, 14), (6, 7))),
    )
}
_MOST_DROPPED = 1 - 1 / 256
"""Chances are of 16 bits: of weights that are all but dropped too many would be kept, or none."""


def draw_dropout_of_attention(joint: fx.GraphModule, takes: Callable[[torch.device], bool]) -> None:
    """Replace attention with dropout, and its gradients, where kernels of Weft's take both: on devices that `takes`
    says have tensor cores for them."""
    found = [node for node in joint.graph.nodes if node.target in _LIBRARIES]
    pairs = [(node, backward) for node in found if (backward := _backward_of(node)) is not None]
    pairs = [(node, backward) for node, backward in pairs if takes(node.args[0].meta["val"].device)]
    for node, backward in pairs:
        _replace(joint.graph, node, backward)
    if pairs:
        joint.graph.lint()
        joint.recompile()


def _backward_of(node: fx.Node) -> fx.Node | None:
    """The one call for gradients of attention with dropout, if it can be replaced together with that."""
    library = _LIBRARIES[node.target]
    args: tuple[Any, ...] = (*node.args, *(None for _ in range(8 - len(node.args))))
    probability: float = args[library.dropout] or 0.0
    if (
        not 0 < probability <= _MOST_DROPPED
        or node.kwargs.get("scale") == 0.0
        or (library.bias is not None and args[library.bias] is not None)
    ):
        return None
    if set(node.kwargs) - {"scale"} or not _is_own(*(each.meta["val"] for each in args[:3])):
        return None
    taken: dict[Any, list[fx.Node]] = {}
    for user in node.users:
        taken.setdefault(user.args[1], []).extend([user] if user.users else [])
    calls = {call for place in (1, *library.states) for each in taken.get(place, ()) for call in each.users}
    if any(users and place not in (0, 1, *library.states) for place, users in taken.items()) or len(calls) != 1:
        return None
    (call,) = calls
    fits = (
        call.target is library.backward
        and call.args[5] in taken.get(1, ())
        and call.args[library.states_given[0]] in taken.get(library.states[0], ())
        and call.args[1:4] == node.args[:3]
        and call.args[library.given[0]] == probability
        and call.kwargs.get("scale") == node.kwargs.get("scale")
    )
    return call if fits and not (library.at_the_end and _is_cut_otherwise(node, call)) else None


def _is_cut_otherwise(node: fx.Node, backward: fx.Node) -> bool:
    """Whether causal attention lets the last query see the last key, not the first the first."""
    args: tuple[Any, ...] = node.args
    query, key = (each.meta["val"] for each in args[:2])
    causal = backward.args[_LIBRARIES[node.target].given[1]]
    return bool(causal) and query.shape[-2] != key.shape[-2]


def _is_own(*tensors: torch.Tensor) -> bool:
    operands = operands_of(*tensors)
    if operands is None:
        return False
    exact = torch.are_deterministic_algorithms_enabled()
    return owns_attention_with_dropout(*operands, at_any_length=exact)


def _replace(graph: fx.Graph, node: fx.Node, backward: fx.Node) -> None:
    library = _LIBRARIES[node.target]
    probability, causal = (backward.args[place] for place in library.given)
    args: tuple[Any, ...] = node.args
    query, scale = args[0].meta["val"], node.kwargs.get("scale")
    options = probability, causal, query.shape[-1] ** -0.5 if scale is None else scale
    getting = {user.args[1]: user for user in node.users}
    result, lse = getting[0].meta["val"], query.new_empty(query.shape[:3], dtype=torch.float32)
    with graph.inserting_before(node):
        seed = graph.call_function(_ops.weft.seed.default, (query.device,))
        made = graph.call_function(operators.ATTENTION, (*node.args[:3], seed, *options))
        parts = [graph.call_function(operator.getitem, (made, place)) for place in (0, 1)]
    seed.meta = {**without_marks(node.meta), "val": query.new_empty((1,), dtype=torch.int64)}
    made.meta = {**node.meta, "val": (result, lse)}
    for part, value in zip(parts, (result, lse), strict=True):
        part.meta = {**getting[0].meta, "val": value}
    for user in [user for user in node.users if user.args[1] == 0]:
        user.replace_all_uses_with(parts[0])
    with graph.inserting_before(backward):
        tensors = *backward.args[:5], parts[1], seed
        gradients = graph.call_function(operators.GRADIENTS, (*tensors, *options))
    gradients.meta = dict(backward.meta)
    backward.replace_all_uses_with(gradients)
    graph.erase_node(backward)
    for user in list(node.users):
        graph.erase_node(user)
    graph.erase_node(node)
