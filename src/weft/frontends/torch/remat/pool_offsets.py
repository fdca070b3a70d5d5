"""Max pooling keeps for its backward where in its window each greatest element lies, which fits into a byte.

    %y, %places = max_pool2d %x                     %y, %places = max_pool2d %x
                                                    %offsets = %places as numbers in windows, u8     ← is kept
    max_pool2d_backward %dy, %x, %places       →    weft::max_pool_backward %dy, %offsets, sizes of %x

Torch keeps the places as i64, four times what bf16 results take, and what was pooled, of which only the sizes are read.
An element then adds up the windows that name it (`ops/windows/unpool.py`), where torch adds windows to their places.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontends.torch.aten.pooling import Windows, windows_of

_aten: Any = torch.ops.aten
_BACKWARDS: dict[Any, tuple[Any, int]] = {
    _aten.max_pool2d_with_indices_backward.default: (_aten.max_pool2d_with_indices.default, 2),
    _aten.max_pool3d_with_indices_backward.default: (_aten.max_pool3d_with_indices.default, 3),
}
"""The gradients of max pooling: what of, and over how many dimensions."""
_MOST_ELEMENTS = 256
"""Of a window: numbers of bytes."""

_library = torch.library.Library("weft", "FRAGMENT")
_library.define(
    "max_pool_backward(Tensor grad, Tensor offsets, int[] sizes, bool channels_last, "
    "int[] window, int[] strides, int[] padding, int[] dilation, bool ceil_mode) -> Tensor"
)


@dataclass(frozen=True)
class Places:
    """Where elements lie: among all of what is pooled, of these `sizes`, and in their `windows`."""

    sizes: tuple[int, ...]
    windows: Windows

    def starts(self, shape: Sequence[int], device: torch.device) -> list[Tensor]:
        """The places where windows begin along each dimension, shaped to be added to results of this shape."""
        rank, found = len(self.sizes), list[Tensor]()
        for d in range(rank):
            numbers = torch.arange(shape[len(shape) - rank + d], device=device)
            begins = numbers * self.windows.strides[d] - self.windows.padding[d]
            found.append(begins.view(*(-1 if other == d else 1 for other in range(rank))))
        return found

    def offsets(self, places: Tensor) -> Tensor:
        """Places among all elements as numbers of elements in their windows."""
        result: Tensor | None = None
        for d, start in enumerate(self.starts(places.shape, places.device)):
            along = torch.div(places, math.prod(self.sizes[d + 1 :]), rounding_mode="floor")
            along = along % self.sizes[d] if d else along
            tap = torch.div(along - start, self.windows.dilation[d], rounding_mode="floor")
            result = tap if result is None else result * self.windows.window[d] + tap
        assert result is not None
        return result.to(torch.uint8)

    def places(self, offsets: Tensor) -> Tensor:
        """And the other way round."""
        numbers, result = offsets.to(torch.int64), None
        for d, start in enumerate(self.starts(offsets.shape, offsets.device)):
            tap = torch.div(numbers, math.prod(self.windows.window[d + 1 :]), rounding_mode="floor")
            tap = tap % self.windows.window[d] if d else tap
            along = start + tap * self.windows.dilation[d]
            result = along if result is None else result * self.sizes[d] + along
        assert result is not None
        return result


def keep_offsets(joint: fx.GraphModule) -> None:
    """Let max pooling of a joint graph keep offsets for its backward, where nobody else reads its places."""
    for target, (forward, rank) in _BACKWARDS.items():
        for node in joint.graph.find_nodes(op="call_function", target=target):
            places: Any = node.args[-1]
            if isinstance(places, fx.Node) and _is_of(places, forward) and len(places.users) == 1:
                _keep(joint.graph, node, places, rank)


def _is_of(places: fx.Node, forward: Any) -> bool:
    source = places.args[0] if places.target is operator.getitem and places.args[1:] == (1,) else None
    return isinstance(source, fx.Node) and source.target is forward


def _keep(graph: fx.Graph, node: fx.Node, places: fx.Node, rank: int) -> None:
    arguments: Any = node.args
    grad, pooled, *given, ceil_mode, _ = arguments
    if not isinstance(pooled, fx.Node) or len(given) != 4:
        return
    shape: tuple[Any, ...] = tuple(pooled.meta["val"].shape)
    sizes: list[Any] = [*shape, *places.meta["val"].shape]
    windows = windows_of(rank, sizes, sizes, *given, ceil_mode=False)  # how far the last ones reach is not asked
    if not all(isinstance(size, int) for size in sizes) or math.prod(windows.window) > _MOST_ELEMENTS:
        return
    where = Places(shape[-rank:], windows)
    offsets = _inserted(graph, where.offsets, places)
    node.target = torch.ops.weft.max_pool_backward.default
    geometry = [[*each] for each in (windows.window, windows.strides, windows.padding, windows.dilation)]
    node.args = (grad, offsets, [*shape], _has_channels_last(pooled.meta["val"]), *geometry, ceil_mode)


def _inserted(graph: fx.Graph, function: Callable[[Tensor], Tensor], source: fx.Node) -> fx.Node:
    """What a function makes of a node's value, behind the node."""
    value: Any = source.meta["val"]

    def alone(given: Tensor) -> Tensor:  # torch does not trace bound methods
        return function(given)

    with value.fake_mode:
        traced = make_fx(alone)(value)
    known: dict[fx.Node, fx.Node] = {}
    place = source
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            known[node] = source
        elif node.op == "output":
            return known[node.args[0]]
        else:
            with graph.inserting_after(place):
                place = known[node] = graph.node_copy(node, known.__getitem__)
    raise AssertionError("a traced graph has an output")


def _max_pool_backward(
    grad: Tensor, offsets: Tensor, sizes: Sequence[int], channels_last: bool, *geometry: Any
) -> Tensor:
    pooled = _pooled(grad, offsets, sizes, channels_last)  # of which torch reads the sizes and the order of its memory
    ((backward, rank),) = ((target, rank) for target, (_, rank) in _BACKWARDS.items() if rank == len(geometry[0]))
    windows = windows_of(rank, [*sizes[-rank:]], [*grad.shape[-rank:]], *geometry)
    return backward(grad, pooled, *geometry, Places(tuple(sizes[-rank:]), windows).places(offsets))


def _pooled(grad: Tensor, offsets: Tensor, sizes: Sequence[int], channels_last: bool, *_geometry: Any) -> Tensor:
    """A tensor like the one that was pooled."""
    order = _channels_last(len(sizes)) if channels_last else torch.contiguous_format
    return torch.empty(sizes, dtype=grad.dtype, device=grad.device, memory_format=order)


def _channels_last(rank: int) -> torch.memory_format:
    return torch.channels_last if rank == 4 else torch.channels_last_3d


def _has_channels_last(value: Tensor) -> bool:
    if value.dim() not in (4, 5) or value.is_contiguous():
        return False
    return value.is_contiguous(memory_format=_channels_last(value.dim()))


_library.impl("max_pool_backward", _max_pool_backward, "CompositeExplicitAutograd")
torch.library.register_fake("weft::max_pool_backward", _pooled)
