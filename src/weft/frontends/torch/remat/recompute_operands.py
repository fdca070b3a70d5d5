"""What only long products of the backward read is made again for them, where that takes little beside the product.

    %a = silu %gate                                    %a = silu %gate
    %m = mul %a, %up                                   %m = mul %a, %up
    %y = grouped_mm %m, %w, %ends                      %y = grouped_mm %m, %w, %ends
    …                                         →        …
    %dw = grouped_outer %dy, %m, %ends   ← %m is kept  %again = mul (silu %gate), %up
                                                       %dw = grouped_outer %dy, %again, %ends

Torch's partitioner never makes again what a library reads, since it has to be written to memory again. For products on
tensor cores that is a good part of their time; for those of f32, which take ten times as long, it is not. What it is
made of has to be there for the backward anyway.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from weft.backends.target import CostFacts
from weft.frontends.torch.capture.checkpoint_marks import mark, policy_of
from weft.frontends.torch.capture.grouped_matmuls import GROUPED_PRODUCTS

_aten: Any = torch.ops.aten
_PRODUCTS: dict[Any, tuple[int, int]] = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    **dict.fromkeys(GROUPED_PRODUCTS, (0, 1)),
}
"""Products, and where their factors stand: they do two operations for each element of one and column of the other."""
_SHARE = 0.1
"""Of a product's time that it may take to make its operand again."""
_LEAST_BYTES = 1 << 20
_DEEPEST = 4
"""Elementwise operators in a row that are made again."""
_TANGENT = "tangents"


def recompute_operands(joint: fx.GraphModule, costs: CostFacts) -> None:
    """Mark such results of elementwise operators as ones that the backward of a joint graph makes again."""
    if not (costs.bandwidth and costs.matmul_flops and costs.vector_flops):
        return
    backward = behind_tangents(joint.graph)
    for node in joint.graph.nodes:
        if node in backward or not _is_elementwise(node) or policy_of(node) is not None:
            continue
        readers = [reader for reader in _readers(node) if reader in backward]
        if not readers or any(reader.target not in _PRODUCTS for reader in readers):
            continue
        moved = sum(map(_bytes_of, (node, *node.all_input_nodes)))
        least = min(_seconds(reader, costs) for reader in readers)
        if _bytes_of(node) < _LEAST_BYTES or moved / costs.bandwidth > _SHARE * least:
            continue
        if all(_is_there(source, backward) for source in node.all_input_nodes):
            mark(node, CheckpointPolicy.PREFER_RECOMPUTE)


def behind_tangents(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that can only be computed when gradients are there."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            is_one = node.name.startswith(_TANGENT)
        else:
            is_one = node.op == "call_function" and any(source in found for source in node.all_input_nodes)
        if is_one:
            found.add(node)
    return found


def _is_elementwise(node: fx.Node) -> bool:
    is_tagged = node.op == "call_function" and torch.Tag.pointwise in getattr(node.target, "tags", ())
    return is_tagged and isinstance(node.meta.get("val"), Tensor)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a node's result, or a view of it."""
    for user in node.users:
        if getattr(user.target, "is_view", False):
            yield from _readers(user)
        else:
            yield user


def _is_there(node: fx.Node, backward: Iterable[fx.Node], depth: int = _DEEPEST) -> bool:
    """Whether the backward reads a node's result in any case, or makes it of what it reads."""
    if node.op == "placeholder" or any(user in backward for user in _readers(node)):
        return True
    return depth > 0 and _is_elementwise(node) and all(_is_there(s, backward, depth - 1) for s in node.all_input_nodes)


def _bytes_of(node: fx.Node) -> int:
    """What a result takes; nothing where that is not known."""
    value: Any = node.meta.get("val")
    sizes: list[Any] = list(value.shape) if isinstance(value, Tensor) else [None]
    return math.prod(sizes) * value.element_size() if all(isinstance(size, int) for size in sizes) else 0


def _seconds(product: fx.Node, costs: CostFacts) -> float:
    """How long a product takes at least, if its sizes are known."""
    first, second = (product.args[place] for place in _PRODUCTS[product.target])
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or not _bytes_of(first):
        return 0.0
    one, other = first.meta["val"], second.meta["val"]
    columns: Any = other.shape[-1]
    if not isinstance(columns, int):
        return 0.0
    return 2.0 * one.numel() * columns / _operations_a_second(one.dtype, costs)


def _operations_a_second(dtype: torch.dtype, costs: CostFacts) -> float:
    if dtype.itemsize < torch.float32.itemsize:
        return costs.matmul_flops
    # Where torch may round f32 to shorter floats, tensor cores multiply them, at half the speed.
    is_rounded = dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return costs.matmul_flops / 2 if is_rounded else costs.vector_flops
