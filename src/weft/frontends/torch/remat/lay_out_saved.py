"""Lets what is kept between forward and backward lie as convolutions on a GPU read it: with channels innermost.

    %c = convolution %x, %w              (its result lies with channels innermost)
    %y = silu %c
    return %loss, %c: (8, 64, 32, 32), strides (65536, 1024, 32, 1)  →  strides (65536, 1, 2048, 64)

Tracing gives what is kept the strides of eager execution: each would be copied to rows of places, and back again for
the gradients of the convolution. Nobody but the backward sees these values. What the user gets, and what lies in an
order of its own, stays.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnnecessaryIsInstance=false

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.frontends.torch.importer.strides import restrided
from weft.passes.convolution.lay_out_convolutions import is_laid_out

_aten: Any = torch.ops.aten

_DEVICE = "cuda"
TRACED = "weft.traced_strides"
"""What the metadata of an argument calls the strides that tracing gave it, where it lies otherwise."""
_PLACES = {_aten.convolution.default: (1, 8), _aten.convolution_backward.default: (2, 9)}
"""Where the weights and the number of groups stand among the arguments."""
_IN_ORDER = {
    _aten.alias.default,
    _aten.detach.default,
    _aten._to_copy.default,
    _aten._adaptive_avg_pool2d.default,
    _aten.avg_pool2d.default,
    _aten.max_pool2d_with_indices.default,
    _aten.constant_pad_nd.default,
    _aten.native_batch_norm.default,
    _aten.cudnn_batch_norm.default,
    _aten._native_batch_norm_legit_functional.default,
    _aten._batch_norm_with_update_functional.default,
}
"""What gives its result, or the first of them, in the order of its first operand, beside what works by elements."""
_IN_ANY_ORDER = {"aten.full.default", "aten.rand.default", "weft.uniform.default"}


def lay_out_saved(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Write channels-innermost strides to what a forward graph keeps, behind its first `results`, for its backward."""
    if not forward.graph.find_nodes(op="call_function", target=_aten.convolution.default):
        return
    if not all(map(_is_plain, (*forward.graph.nodes, *backward.graph.nodes))):
        return
    returned: Sequence[Any] = next(iter(forward.graph.find_nodes(op="output"))).args[0]
    read = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    seen = {_storage(node) for node in returned[:results]}
    seen.update(map(_storage, forward.graph.find_nodes(op="placeholder")))
    kept = [node for node in returned[results:] if isinstance(node, fx.Node) and node.name in read]
    shared = Counter(map(_storage, kept))
    innermost = _innermost(forward.graph)
    for node in filter(_is_image, kept):
        # What shares its memory with another is a view of it, or has one.
        if _storage(node) in seen or shared[_storage(node)] > 1:
            continue
        reader = read[node.name]
        if innermost.get(node) or _is_convolved(node) or _is_convolved(reader):
            value = _with_channels_innermost(node.meta["val"])
            reader.meta[TRACED] = node.meta["val"].stride()
            node.meta["val"], reader.meta["val"] = value, value


def as_traced(module: fx.GraphModule, arguments: list[Any]) -> Sequence[Any]:
    """What a graph gives as torch runs it, whose views depend on how arguments lay when it was traced."""
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if TRACED in node.meta:
            arguments[place] = restrided(arguments[place], node.meta[TRACED])
    return module.forward(*arguments)


def _is_plain(node: fx.Node) -> bool:
    """Whether a node does the same however its operands lie, and its sizes are known."""
    value: Any = node.meta.get("val")
    if isinstance(value, torch.SymInt) or (isinstance(value, Tensor) and not _has_known_sizes(value)):
        return False
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and ".as_strided" not in str(node.target)


def _innermost(graph: fx.Graph) -> dict[fx.Node, bool]:
    """Whether values lie with channels innermost if kernels follow their operands: what a convolution makes, and what
    is made of that in its order. Of values that kernels write in any order, such as masks of dropout, nothing is said.
    """
    known: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        if node.target is _aten.convolution.default:
            known[node] = _is_taken(node) and _is_short(node) and _is_image(node)
        elif (leading := _leading(node)) is None:
            known[node] = False
        elif orders := [known[each] for each in leading if each in known]:
            known[node] = all(orders)
    return known


def _leading(node: fx.Node) -> list[fx.Node] | None:
    """The operands whose order a node's result keeps; none where it has an order of its own."""
    target: Any = node.target
    if target in _IN_ORDER or target is operator.getitem:
        return node.all_input_nodes[:1]
    if str(target) in _IN_ANY_ORDER:
        return []
    if torch.Tag.pointwise not in getattr(target, "tags", ()):
        return None
    shape = _shape(node)
    return None if shape is None else [each for each in node.all_input_nodes if _shape(each) == shape]


def _is_convolved(node: fx.Node) -> bool:
    """Whether a convolution of the library, or its gradients, reads a node."""
    calls = [user for user in node.users if user.target in _PLACES and _is_taken(user)] if _is_short(node) else []
    return any(node in call.args[: _PLACES[call.target][0] + 1] for call in calls)


def _is_taken(call: fx.Node) -> bool:
    weights, groups = (call.args[place] for place in _PLACES[call.target])
    shape = _shape(weights) if isinstance(weights, fx.Node) else None
    return shape is not None and is_laid_out(groups, shape)


def _is_image(node: fx.Node) -> bool:
    """Whether a node is a row-major tensor [N, C, ...] on a GPU, along two or three dimensions."""
    value: Any = node.meta.get("val")
    if not isinstance(value, Tensor) or value.device.type != _DEVICE or value.dim() not in (4, 5):
        return False
    return _has_known_sizes(value) and value.is_contiguous() and 0 not in value.shape


def _has_known_sizes(value: Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _is_short(node: fx.Node) -> bool:
    """Whether a node is of floats that a GPU's tensor cores convolve."""
    value: Any = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _shape(node: fx.Node) -> torch.Size | None:
    value: Any = node.meta.get("val")
    return value.shape if isinstance(value, Tensor) else None


def _storage(node: Any) -> int | None:
    """What tells a tensor's memory from others'."""
    value: Any = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _with_channels_innermost(value: Tensor) -> Tensor:
    """A tensor like this one with its channels innermost."""
    images, channels, *places = value.shape
    with value.fake_mode:  # type: ignore[attr-defined]
        made = torch.empty((images, *places, channels), dtype=value.dtype, device=value.device)
        return made.movedim(-1, 1)
