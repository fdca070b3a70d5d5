"""Writes out what norms make of their statistics, so that a backward can compute it again of what it reads anyway.

    %y, %mean, %rstd = layer_norm %x, %w, %b        %_, %mean, %rstd = layer_norm %x, %w, %b
                                                    %y = (%x - %mean) * %rstd * %w + %b
    %z = silu %y                             →      %z = silu %y
    …                                               …
    %dy = silu_backward %dz, %y    ← %y is kept     %dy = silu_backward %dz, (%x - %mean) * %rstd * %w + %b

The partitioner computes no norm again, since its statistics pass over whole rows. The norm is imported as the same
parts, and what it made before is read by nobody. Norms whose results no gradient reads, such as one before a product,
stay.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from weft.frontends.torch.capture.checkpoint_marks import mark
from weft.frontends.torch.remat.recompute_operands import behind_tangents

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class _Norm:
    """A call of a norm, of whose results the first is what it makes and the next ones are statistics."""

    node: fx.Node
    result: fx.Node
    statistics: tuple[fx.Node, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.node.args

    @property
    def value(self) -> Tensor:
        """What is normalized."""
        return self.arguments[0].meta["val"]


def write_out_norms(graph: fx.Graph) -> None:
    """Let what reads results of norms read what is made of their statistics, where that is what gradients read."""
    norms = [norm for target in _WRITTEN for norm in map(_norm, graph.find_nodes(op="call_function", target=target))]
    known = [norm for norm in norms if norm is not None]
    if not known:
        return
    later = _later(graph)
    for norm in known:
        if not any(reader in later for reader in _readers(norm.result)):
            continue
        last = max((norm.result, *norm.statistics))
        with graph.inserting_before(last.next):
            made = _WRITTEN[norm.node.target](_Writer(graph, norm.statistics[-1].meta["val"].dtype), norm)
        made.meta = {**norm.result.meta, **{key: each for key, each in made.meta.items() if key != "val"}}
        norm.result.replace_all_uses_with(made)
        graph.erase_node(norm.result)


def _norm(node: fx.Node) -> _Norm | None:
    """A norm whose statistics are there, and tell what it made: those in short floats do not."""
    results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    places = (1,) if node.target is _aten._fused_rms_norm.default else (1, 2)
    if not {0, *places} <= results.keys() or not _TRAINS.get(node.target, _always)(node.args):
        return None
    statistics = tuple(results[place] for place in places)
    wide = all(each.meta["val"].dtype.itemsize >= torch.float32.itemsize for each in statistics)
    norm = _Norm(node, results[0], statistics)
    # What is computed element by element lies as its operand does, and shapes are written into the graph.
    known = not any(isinstance(size, torch.SymInt) for size in norm.value.shape)
    return norm if wide and known and norm.value.stride() == results[0].meta["val"].stride() else None


def _later(graph: fx.Graph) -> Collection[fx.Node]:
    """The nodes that only gradients need."""
    found = behind_tangents(graph)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node.users and all(user in found for user in node.users):
            found.add(node)
    return found


def _readers(node: fx.Node) -> list[fx.Node]:
    """What reads a result, or a view or a cast of it."""
    found: list[fx.Node] = []
    for user in node.users:
        passes = user.target is _aten._to_copy.default or getattr(user.target, "is_view", False)
        found += [user, *(_readers(user) if passes else ())]
    return found


class _Writer:
    """Writes calls into a graph, in the type that a norm is computed in."""

    def __init__(self, graph: fx.Graph, dtype: torch.dtype) -> None:
        self.graph, self.dtype = graph, dtype

    def call(self, target: Any, *args: Any, **named: Any) -> fx.Node:
        node = self.graph.call_function(target, args, named)
        values = {each: each.meta["val"] for each in node.all_input_nodes}
        with next(iter(values.values())).fake_mode:
            node.meta["val"] = target(*fx.map_arg(args, values.__getitem__), **named)
        return node

    def to(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        return node if node.meta["val"].dtype == dtype else self.call(_aten._to_copy.default, node, dtype=dtype)

    def shaped(self, node: fx.Node, shape: list[Any]) -> fx.Node:
        return node if list(node.meta["val"].shape) == shape else self.call(_aten.view.default, node, shape)

    def normal(self, x: fx.Node, mean: fx.Node | None, rstd: fx.Node) -> fx.Node:
        wide = self.to(x, self.dtype)
        first = self.call(_aten.mul.Tensor, wide, rstd) if mean is None else self.call(_aten.sub.Tensor, wide, mean)
        # The partitioner keeps what reads a value after an operator has that it does not fuse, and so does the norm.
        mark(first, CheckpointPolicy.PREFER_RECOMPUTE)
        return first if mean is None else self.call(_aten.mul.Tensor, first, rstd)

    def scaled(self, x: fx.Node, weight: fx.Node | None, bias: fx.Node | None, shape: list[Any]) -> fx.Node:
        if weight is not None:
            x = self.call(_aten.mul.Tensor, x, self.shaped(self.to(weight, self.dtype), shape))
        if bias is not None:
            x = self.call(_aten.add.Tensor, x, self.shaped(self.to(bias, self.dtype), shape))
        return x


def _layer_norm(write: _Writer, norm: _Norm) -> fx.Node:
    x, shape, weight, bias, *_ = norm.arguments
    made = write.scaled(write.normal(x, *norm.statistics), weight, bias, [*shape])
    return write.to(made, norm.value.dtype)


def _rms_norm(write: _Writer, norm: _Norm) -> fx.Node:
    x, shape, weight, *_ = norm.arguments
    made = write.scaled(write.normal(x, None, *norm.statistics), weight, None, [*shape])
    return write.to(made, norm.value.dtype)


def _group_norm(write: _Writer, norm: _Norm) -> fx.Node:
    """By statistics of each channel: what is normalized keeps its shape, so that what reads the result joins in."""
    x, weight, bias, *_, groups, _ = norm.arguments
    rows, channels, *spatial = norm.value.shape
    ones, each = [1] * len(spatial), [rows, groups, channels // groups]

    def by_channel(statistic: fx.Node) -> fx.Node:
        wide = write.call(_aten.expand.default, write.shaped(statistic, [rows, groups, 1]), each)
        return write.shaped(write.call(_aten.clone.default, wide), [rows, channels, *ones])

    normal = write.normal(x, *map(by_channel, norm.statistics))
    return write.to(write.scaled(normal, weight, bias, [channels, *ones]), norm.value.dtype)


def _batch_norm(write: _Writer, norm: _Norm) -> fx.Node:
    x, weight, bias, *_ = norm.arguments
    shape = [norm.value.shape[1], *(1 for _ in norm.value.shape[2:])]
    normal = write.normal(x, *(write.shaped(each, shape) for each in norm.statistics))
    return write.to(write.scaled(normal, weight, bias, shape), norm.value.dtype)


_WRITTEN: dict[Any, Callable[[_Writer, _Norm], fx.Node]] = {
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_group_norm.default: _group_norm,
    _aten._fused_rms_norm.default: _rms_norm,
    _aten._native_batch_norm_legit_functional.default: _batch_norm,
    _aten._native_batch_norm_legit.no_stats: _batch_norm,
    _aten._batch_norm_with_update_functional.default: _batch_norm,
}
_TRAINS: dict[Any, Callable[[tuple[Any, ...]], bool]] = {
    _aten._native_batch_norm_legit_functional.default: lambda args: args[5] is True,
    _aten._native_batch_norm_legit.no_stats: lambda args: args[3] is True,
}
"""Whether a batch norm is by the statistics of its batch, which it gives."""


def _always(_: tuple[Any, ...]) -> bool:
    return True
