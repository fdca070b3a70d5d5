"""Tables that a GPU's graph makes in the processor's memory, and reads there or copies: made once, or on the GPU.

    %i = arange 20 device=cpu
    %t = …                           →    %g = get_attr table          (what torch's processor made of it, copied once)
    %y = index %x, %t                     %y = index %x, %g

Positions and buckets of relative positions are such, where a model's code names no device. A graph has one device, and
without this torch would run all of it. A table whose size is symbolic, or that is large, is made on the GPU if it is
made of integers alone: logarithms, say, round otherwise there.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from weft.frontends.torch.capture.causal_masks import computed, constant_nodes

CPU = torch.device("cpu")

_NAME = "_table_of_processor"
_aten = torch.ops.aten
_READERS = frozenset(
    (
        *(_aten._to_copy.default, torch.ops.prims.device_put.default, _aten.copy.default, _aten.copy_.default),
        *(_aten.index.Tensor, _aten._unsafe_index.Tensor),
        *(_aten.index_put.default, _aten.index_put_.default, _aten._unsafe_index_put.default),
    )
)
"""Calls that take tensors of either memory beside a GPU's. Others, which take lengths say, ask for the processor's."""
_MOST_BYTES = 1 << 26
"""Of a table that is kept for as long as the program is."""


def make_tables(module: fx.GraphModule) -> None:
    """Replace what a GPU's calls read in the processor's memory, where it is made of no tensor that was given."""
    tables: dict[tuple[fx.Node, torch.device], fx.Node | None] = {}
    for node in list(module.graph.nodes):
        device = _device(node)
        if node.target not in _READERS or device is None or device.type != "cuda":
            continue
        for source in node.all_input_nodes:
            if source.op != "call_function" or _device(source) != CPU or not source.meta["val"].dim():
                continue
            key = source, device
            if key not in tables:
                tables[key] = _computed_once(module, source, device) or _made_there(source, device)
            table = tables[key]
            if table is not None:
                node.replace_input_with(source, table)
    for (source, _), table in tables.items():
        if table is not None:
            _erase(source)
    if any(tables.values()):
        module.recompile()


def _device(node: fx.Node) -> torch.device | None:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return next((each.device for each in leaves if isinstance(each, Tensor)), None)


def _erase(node: fx.Node) -> None:
    """A call whose result nobody reads, and what was computed for it alone."""
    if node.op == "call_function" and not node.users and not node._erased:
        operands = node.all_input_nodes
        node.graph.erase_node(node)
        for each in operands:
            _erase(each)


def _computed_once(module: fx.GraphModule, source: fx.Node, device: torch.device) -> fx.Node | None:
    needed, value = constant_nodes(source), source.meta["val"]
    if needed is None or value.numel() * value.element_size() > _MOST_BYTES:
        return None
    with unset_fake_temporarily(), torch.no_grad():
        table = _copied(computed(needed), device)
    name = f"{_NAME}_{sum(each.startswith(_NAME) for each, _ in module.named_buffers(recurse=False))}"
    module.register_buffer(name, table, persistent=False)
    with module.graph.inserting_after(source):
        node = module.graph.get_attr(name)
    node.meta["val"] = _lying_on(value, device)
    return node


def _copied(made: Tensor, device: torch.device) -> Tensor:
    return made.to(device)


def _made_there(source: fx.Node, device: torch.device) -> fx.Node | None:
    """The same calls for tensors of the GPU's, if all that they compute are integers."""
    needed = _integer_calls(source)
    if needed is None:
        return None
    copies: dict[fx.Node, fx.Node] = {}
    with source.graph.inserting_after(source):
        for node in reversed(needed):
            copies[node] = source.graph.node_copy(node)
    for node, made in copies.items():
        made.args, made.kwargs = fx.map_arg((node.args, node.kwargs), lambda each: copies.get(each, each))
        if "device" in made.kwargs:
            made.kwargs = {**made.kwargs, "device": device}
        made.meta["val"] = _lying_on(node.meta["val"], device)
    return copies[source]


def _lying_on(value: FakeTensor, device: torch.device) -> Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _integer_calls(source: fx.Node) -> list[fx.Node] | None:
    found: dict[fx.Node, None] = {}
    waiting = [source]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            continue
        if not isinstance(node.target, OpOverload) or node.target.namespace not in ("aten", "prims"):
            return None
        if node.is_impure() or torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
            return None
        found[node] = None
        waiting += node.all_input_nodes
    order = {node: place for place, node in enumerate(source.graph.nodes)}
    return sorted(found, key=order.__getitem__)
