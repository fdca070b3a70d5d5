"""Attention masks that are the same in every call and hide nothing, or all later keys: attention is told, not masked.

    %mask = full true (64, 1, 197, 197)
    %y = scaled_dot_product_attention %q, %k, %v, %mask     →     %y = scaled_dot_product_attention %q, %k, %v

Where a model makes a mask for a library to skip, torch finds no fused attention for it if its rows are not aligned, and
writes attention out. So this is done to the graph that Dynamo captured, before torch chooses (`causal_masks`: after).
"""

# Torch's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from weft.frontends.torch.capture.causal_masks import computed, constant_nodes, hides_later_keys, without_repeats
from weft.frontends.torch.capture.graph_effects import writes

log = logging.getLogger("weft")

_ATTENTION: Any = functional.scaled_dot_product_attention
_QUERY, _KEY = ("query", 0), ("key", 1)
_MASK, _IS_CAUSAL = 3, 5
"""Where attention has its mask, and whether it is causal, among its arguments."""


def without_constant_masks(module: fx.GraphModule) -> fx.GraphModule:
    """The module, or a copy in which attention reads no mask that says nothing of its own."""
    calls = module.graph.find_nodes(op="call_function", target=_ATTENTION)
    masks = {node: mask for node in calls if isinstance(mask := _given(node, "attn_mask", _MASK), fx.Node)}
    made = {mask: _made_of(mask) for mask in dict.fromkeys(masks.values())}
    known = {mask: _meaning(module, mask, nodes) for mask, nodes in made.items() if nodes is not None}
    if not any(known.values()):
        return module
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.output(cast("Any", graph.graph_copy(module.graph, copied)))
    stated = set[fx.Node]()
    for node, mask in masks.items():
        meaning, is_causal = known.get(mask, ""), bool(_given(node, "is_causal", _IS_CAUSAL))
        if not _fits(node, mask):
            continue
        if meaning == "full" or (meaning == "causal" and _is_square(node) and not is_causal):
            _state(copied[node], is_causal=meaning == "causal" or is_causal)
            stated |= made[mask] or set()
    for node in reversed(module.graph.nodes):
        # Nothing else is taken out: a graph of Dynamo's writes to tensors by calls whose results nobody reads.
        if node in stated and not copied[node].users:
            graph.erase_node(copied[node])
    result = fx.GraphModule(module, graph)
    result.meta = dict(module.meta)
    return result


def _given(node: fx.Node, name: str, place: int) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _state(node: fx.Node, *, is_causal: bool) -> None:
    args = list(node.args)
    for name, place, value in (("attn_mask", _MASK, None), ("is_causal", _IS_CAUSAL, is_causal)):
        if len(args) > place:
            args[place] = value
        else:
            node.kwargs = {**node.kwargs, name: value}
    node.args = tuple(args)


def _is_square(node: fx.Node) -> bool:
    """Whether there are as many keys as rows: where there are not, libraries count from other ends."""
    sizes = [each[-2] if each else None for each in (_shape(_given(node, *where)) for where in (_QUERY, _KEY))]
    return all(isinstance(size, int) for size in sizes) and sizes[0] == sizes[1]


def _fits(node: fx.Node, mask: fx.Node) -> bool:
    """Whether a mask is for no more than there are scores: of others attention says that they do not fit."""
    query, of_mask = _shape(_given(node, *_QUERY)), _shape(mask)
    if query is None or of_mask is None or len(of_mask) > len(query):
        return False
    return all(size in (1, there) for size, there in zip(of_mask[-3::-1], query[-3::-1], strict=False))


def _shape(given: Any) -> torch.Size | None:
    value = given.meta.get("example_value") if isinstance(given, fx.Node) else None
    return value.shape if isinstance(value, Tensor) else None


def _meaning(module: fx.GraphModule, mask: fx.Node, made: set[fx.Node]) -> str:
    """Whether a mask is `full`, so that every row sees every key, or `causal`; empty where neither is known."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node in made:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(copied[mask])
    part = fx.GraphModule(module, graph)
    try:
        # As operators, of which it is known what they read and whether they draw numbers.
        traced = make_fx(part, tracing_mode="fake")()
        (output,) = traced.graph.find_nodes(op="output")
        needed = constant_nodes(output.args[0])
        if needed is None:
            return ""
        with unset_fake_temporarily(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            value = without_repeats(computed(needed))
            seen = value if value.dtype == torch.bool else value == 0
            if bool(seen.all()):
                return "full"
            return "causal" if value.shape[-1] == value.shape[-2] and hides_later_keys(value) else ""
    except Exception as error:  # then it is read, as it was meant to be
        log.info("a mask of attention is not computed: %r", error)
        return ""


def _made_of(mask: fx.Node) -> set[fx.Node] | None:
    """The nodes that make a mask, if no argument has a part in it and nobody writes to what they make."""
    made, waiting = set[fx.Node](), [mask]
    while waiting:
        node = waiting.pop()
        if node.op not in ("call_function", "call_method"):
            return None
        if node not in made:
            made.add(node)
            waiting += node.all_input_nodes
    seen, following = set[fx.Node](), list(made)
    while following:
        node = following.pop()
        if node in seen or node.target is _ATTENTION or node.op == "output":
            continue
        if writes(node):
            return None
        seen.add(node)
        following += node.users
    return made
