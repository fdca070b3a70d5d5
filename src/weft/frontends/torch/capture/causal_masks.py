"""Attention masks that are causal, whatever computes them: one that depends on no argument is computed at compile time.

A decoder of transformers compares ids of documents that it derives from its positions, so that packed sequences do not
see each other. Where positions are plain, all of it is the same in every call: each row sees the keys up to its own.
Attention that is told so computes half as much, and reads no mask.
"""

# Torch's values have no types that can be followed.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.node import map_arg
from torch.fx.operator_schemas import normalize_function

log = logging.getLogger("weft")

_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}{end}").default
    for kind in ("cudnn_attention", "efficient_attention", "flash_attention_for_cpu")
    for end in ("", "_backward")
)
_MASKS = ("attn_bias", "attn_mask")
_HIDDEN = -65504.0
"""What is added to a score whose key does not count, at most: a row's own key has one that is larger by far."""
_MOST_BYTES = 1 << 29
"""What the calls that make a mask may make together: a few seconds of computing."""


def state_causal_masks(graph: fx.GraphModule) -> None:
    """Let attention whose mask is causal say so in place of reading it."""
    is_causal: dict[str, bool] = {}
    stated = False
    for node, arguments in _masked_attention(graph):
        name = next(name for name in _MASKS if name in arguments)
        needed = constant_nodes(arguments[name]) if _is_square(arguments, arguments[name]) else None
        if needed is None:
            continue
        text = _text(needed)  # every layer makes a mask of its own
        if text not in is_causal:
            is_causal[text] = _is_causal(needed)
        if not is_causal[text]:
            continue
        arguments |= {name: None, "is_causal": True}
        given = [each.name for each in cast("OpOverload", node.target)._schema.arguments if not each.kwarg_only]
        node.args = tuple(arguments.pop(each) for each in given)
        node.kwargs = arguments
        stated = True
    if stated:
        graph.graph.eliminate_dead_code()
        graph.recompile()


def _masked_attention(graph: fx.GraphModule) -> Iterator[tuple[fx.Node, dict[str, Any]]]:
    """The calls of attention with a mask, and their arguments by name."""
    for target in _ATTENTION:
        for node in graph.graph.find_nodes(op="call_function", target=target):
            normal = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)
            arguments = {} if normal is None else dict(normal.kwargs)
            is_masked = any(isinstance(arguments.get(name), fx.Node) for name in _MASKS)
            if is_masked and not arguments.get("is_causal"):
                yield node, arguments


def _is_square(arguments: dict[str, Any], mask: fx.Node) -> bool:
    """Whether there are as many keys as rows, and a mask for each: where there are not, libraries count from other
    ends. Sizes that are not known are not compared, which would fix them."""
    shapes: list[Any] = [arguments[name].meta["val"].shape for name in ("query", "key")]
    sizes = [shape[-2] for shape in shapes] + list(mask.meta["val"].shape[-2:])
    return all(isinstance(size, int) for size in sizes) and len(sizes) == 4 and len(set(sizes)) == 1


def _is_causal(needed: list[fx.Node]) -> bool:
    """Whether what the last of these calls makes lets each row see the keys up to its own and no others."""
    # Tracing is still under way, which would make a fake tensor of whatever is computed here.
    with unset_fake_temporarily(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        try:
            mask = computed(needed)
        except Exception as error:  # then it is read, as it was meant to be
            log.info("a mask of attention is not computed: %r", error)
            return False
        return hides_later_keys(without_repeats(mask))


def without_repeats(mask: torch.Tensor) -> torch.Tensor:
    """A mask once for all that share it."""
    return mask[tuple(0 if step == 0 else slice(None) for step in mask.stride()[:-2])]


def hides_later_keys(mask: torch.Tensor) -> bool:
    """Whether a mask lets each row see the keys up to its own and no others."""
    seen = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return bool((mask == seen).all())
    return bool(torch.where(seen, mask == 0, mask <= _HIDDEN).all())


def constant_nodes(mask: fx.Node) -> list[fx.Node] | None:
    """The calls that make a mask, in order, if no argument has a part in it, nor chance, and it is not too large.

    Operators of others may read what nobody sees, so only torch's own are looked at.
    """
    found: dict[fx.Node, None] = {}
    waiting, made = [mask], 0
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        value = node.meta.get("val")
        if not isinstance(node.target, OpOverload) or node.target.namespace not in ("aten", "prims"):
            return None
        if node.is_impure() or torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        if not isinstance(value, torch.Tensor) or any(not isinstance(size, int) for size in cast("Any", value.shape)):
            return None
        made += 0 if node.target.is_view else value.numel() * value.element_size()
        if made > _MOST_BYTES:
            return None
        found[node] = None
        waiting += node.all_input_nodes
    order = {node: place for place, node in enumerate(mask.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _text(needed: list[fx.Node]) -> str:
    """What calls compute, the same for calls that compute the same in the same order."""
    numbers = {node: number for number, node in enumerate(needed)}
    return "\n".join(
        f"{node.target} {map_arg((node.args, node.kwargs), lambda each: f'%{numbers[each]}')}" for node in needed
    )


def computed(needed: list[fx.Node]) -> torch.Tensor:
    """What the last of these calls makes, on this processor."""
    values: dict[fx.Node, Any] = {}
    for node in needed:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": "cpu"}
        values[node] = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  a call of an operator
    return values[needed[-1]]
