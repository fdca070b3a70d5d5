"""On which device a captured graph runs: one for all of its tensors, but for numbers that lie beside the processor."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from weft.errors import UnsupportedError
from weft.frontends.torch.capture.host_copies import lies_on_host
from weft.frontends.torch.importer.builder import DEVICES

CPU = torch.device("cpu")


def graph_device(module: fx.GraphModule) -> torch.device:
    """The device that a captured graph runs on.

    A tensor without dimensions may lie in the processor's memory and meet those of a GPU, as torch allows it. Results
    may be copied there, and so may what waits for the backward. Whatever else takes part lies on one device, or the
    graph is refused.
    """
    devices: dict[torch.device, fx.Node] = {}
    numbers: list[fx.Node] = []
    for node in module.graph.nodes:
        if node.op == "output" or lies_on_host(node):
            continue
        for meta in _tensors(module, node):
            if meta.device.type not in DEVICES:
                raise UnsupportedError(f"a tensor on the device {meta.device}")
            if meta.device.type == "cpu" and meta.dim() == 0:
                numbers.append(node)
            elif not copies_away(node):
                devices.setdefault(meta.device, node)
    if len(devices) > 1:
        found = ", ".join(f"{node.name} on {device}" for device, node in devices.items())
        raise UnsupportedError(f"the tensors of a graph lie on several devices: {found}", hint="move them to one")
    (device,) = devices or (CPU,)
    if device.type == "cuda":
        wanted = {item for item in _outputs(module) if isinstance(item, fx.Node) and item.op == "call_function"}
        if returned := [node.name for node in numbers if node in wanted and not copies_away(node)]:
            raise UnsupportedError(f"{', '.join(returned)} is a number in the processor's memory, and a result")
    return device


def copies_away(node: fx.Node) -> bool:
    """Whether a node copies a GPU's tensor to the processor's memory, as a result of the graph and nothing else."""
    meta, source = node.meta.get("val"), node.args[0] if node.args else None
    if node.op != "call_function" or not isinstance(meta, torch.Tensor) or not isinstance(source, fx.Node):
        return False
    given = source.meta.get("val")
    away = meta.device.type == "cpu" and isinstance(given, torch.Tensor) and given.device.type == "cuda"
    return away and all(user.op == "output" for user in node.users)


def _tensors(module: fx.GraphModule, node: fx.Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    if node.op == "get_attr" and value is None:
        value = getattr(module, str(node.target), None)
    for leaf in [value] if isinstance(value, torch.Tensor) else pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _outputs(module: fx.GraphModule) -> Sequence[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return output.args[0]
