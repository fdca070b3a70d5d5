"""Makes one node of those of a joint graph that compute the same, so that no value is kept twice.

    %a = exp %x                     %a = exp %x
    %b = exp %x              →      %y = mul %a, %a
    %y = mul %a, %b

It stands before torch's partitioner, whose own pass copies the graph and brings all of Inductor with it: a second of
the first call.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

_aten: Any = torch.ops.aten
_UNSET = {_aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default}
"""Whoever fills one of them does not fill another."""
_OTHER_EACH_TIME = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,  # a size that is only known when it has run has a symbol of its own
    torch.Tag.dynamic_output_shape,
}


def eliminate_common_nodes(graph: fx.Graph) -> None:
    """Replace nodes by earlier ones of the same value. Memory that is written to, or given back, stays its own."""
    own = _sharing_with_results(graph)
    known: dict[Hashable, fx.Node] = {}
    writes = 0
    for node in list(graph.nodes):
        if _writes(node):
            writes += 1  # what is read after it may have changed
            continue
        if node in own or (key := _key(node)) is None:
            continue
        earlier = known.setdefault((writes, key), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _writes(node: fx.Node) -> bool:
    """Whether a node may write to memory that it did not make: a kernel of the user's does, as an operator of torch's
    whose schema says so."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable  # pyright: ignore[reportPrivateUsage]
    return isinstance(node.target, HigherOrderOperator)


def _key(node: fx.Node) -> Hashable | None:
    """What nodes of one value have in common; None where it may be another each time."""
    target = node.target
    if isinstance(target, OpOverload):
        if target in _UNSET or not _OTHER_EACH_TIME.isdisjoint(target.tags):
            return None
    elif target is not operator.getitem:
        return None
    try:
        key = target, tuple(map(_frozen, node.args)), _frozen(node.kwargs)
        hash(key)
    except TypeError:  # a size that is an expression
        return None
    return key


def _frozen(value: Any) -> Hashable:
    """An argument as part of a key: 1, 1.0 and True are three values, as are 0.0 and -0.0."""
    kind = type(value)
    if kind is fx.Node:
        return value
    if isinstance(value, list | tuple):
        return (list, *map(_frozen, value))
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    return kind, repr(value) if kind is float or kind is complex else value


def _sharing_with_results(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory is that of a result: two results of one value are two tensors."""
    results = {each for node in graph.find_nodes(op="output") for each in _storages(node.all_input_nodes)}
    return {node for node in graph.nodes if not results.isdisjoint(_storages([node]))}


def _storages(nodes: Iterable[fx.Node]) -> set[int]:
    """The memory of nodes, as numbers."""
    found: set[int] = set()
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            found.add(value.untyped_storage()._cdata)  # pyright: ignore[reportPrivateUsage]
    return found
