"""Values through which no gradient flows, in captured graphs: their bits are read, and bits have none."""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

_ops: Any = torch.ops.aten
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def stopped(x: torch.Tensor) -> torch.Tensor:
    """The same values, through which no gradient flows."""
    if x.is_neg():
        return _ops._neg_view(stopped(_ops._neg_view(x)))
    if x.is_conj():
        return stopped(x.conj()).conj()
    if x.is_complex():
        return torch.view_as_complex(stopped(torch.view_as_real(x)))
    return x.view(_BITS[x.dtype.itemsize]).view(x.dtype) if x.is_floating_point() else x


_library = torch.library.Library("weft", "FRAGMENT")
_library.define("without_gradients(Tensor x) -> Tensor")
_library.define("gradients_of(Tensor x, Tensor before) -> Tensor")


def _copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


_library.impl("without_gradients", _copied, "CompositeExplicitAutograd")
torch.library.register_fake("weft::without_gradients", _copied)


def _written(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return x.clone()


_library.impl("gradients_of", _written, "CompositeExplicitAutograd")
torch.library.register_fake("weft::gradients_of", _written)


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    """The same values, through which tangents flow and gradients do not: those of `no_grad`."""
    if x.is_neg():
        return _ops._neg_view(without_gradients(_ops._neg_view(x)))
    if x.is_conj():
        return without_gradients(x.conj()).conj()
    if x.is_complex():
        return torch.view_as_complex(without_gradients(torch.view_as_real(x)))
    return torch.ops.weft.without_gradients(x) if x.is_floating_point() else x


def gradients_of(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The values and tangents of `x` and the gradients of `before`: what is written over under `no_grad`."""
    if x.is_neg() or x.is_conj():
        return gradients_of(x.resolve_conj().resolve_neg(), before.resolve_conj().resolve_neg())
    if x.is_complex():
        parts = torch.view_as_real(x), torch.view_as_real(before.resolve_conj().resolve_neg())
        return torch.view_as_complex(gradients_of(*parts))
    return torch.ops.weft.gradients_of(x, before.resolve_neg()) if x.is_floating_point() else x


def stop_gradients(graph: fx.Graph) -> None:
    """Let no gradient flow to the rows of padding of embeddings."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.embedding.default:
            stop_gradient_of_padding(graph, node)


def stop_gradient_of_padding(graph: fx.Graph, node: fx.Node) -> None:
    """A row of an embedding that pads has no gradient where it is read."""
    table, places, *rest = node.args
    padding = rest[0] if rest else -1
    assert isinstance(table, fx.Node) and isinstance(places, fx.Node), "traced"
    if not isinstance(padding, int) or padding < 0:
        return

    def padded(add: Callable[..., fx.Node]) -> fx.Node:
        aten = torch.ops.aten
        pads = add(aten.unsqueeze.default, add(aten.eq.Scalar, places, padding), -1)
        return add(aten.where.self, pads, _fixed(add, node), node)

    _replace(graph, node, padded)


def _fixed(add: Callable[..., fx.Node], node: fx.Node) -> fx.Node:
    kind: torch.dtype = node.meta["val"].dtype
    bits = add(torch.ops.aten.view.dtype, node, _BITS[kind.itemsize])
    return add(torch.ops.aten.view.dtype, bits, kind)


def _replace(graph: fx.Graph, node: fx.Node, build: Callable[[Callable[..., fx.Node]], fx.Node]) -> None:
    """Let the readers of a node read what is built of it."""
    readers = list(node.users)
    made: fx.Node = node

    def add(target: Any, *args: Any) -> fx.Node:
        nonlocal made
        with graph.inserting_after(made):
            made = graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        made.meta = {**node.meta, "val": target(*values)}
        return made

    chosen = build(add)
    for reader in readers:
        reader.replace_input_with(node, chosen)
