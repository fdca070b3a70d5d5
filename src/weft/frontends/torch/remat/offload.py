"""Lets values wait for the backward in the host's memory: a copy out in the forward, and one back in the backward.

    forward                              forward
      %a = mm …                            %a = mm …
      %y = sin %a                          %h = weft.offload %a
      return %y, %a                        %y = sin %a
                                    →      %k = weft.offloaded %h, %a
                                           return %y, %k
    backward(%a, %g)                     backward(%k, %g)
      …                                    %c = weft.reload %k
      %x = cos %a                          …
                                           %a = weft.reloaded %c, %k
                                           %x = cos %a

Copies run beside what is computed meanwhile; `passes/remat/transfer_schedule.py` says when they begin and end.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from weft.backends.target import CostFacts
from weft.frontends.torch.capture.checkpoint_marks import policy_of, save_where_it_stands
from weft.frontends.torch.capture.host_copies import OFFLOAD, OFFLOADED, RELOAD, RELOADED
from weft.frontends.torch.remat.joint_problem import bytes_of_value, work_of
from weft.passes.remat.transfer_schedule import CopyBack, CopyOut, starts_of_copies_back, waits_for_copies_out

Parts = tuple[fx.GraphModule, fx.GraphModule]
_OFFLOADS = tuple(
    policy for policy in CheckpointPolicy if policy.name.endswith("_CPU_OFFLOAD")
)  # which older versions of torch do not have
_SLOW = 1e10
"""Bytes a second where a target says nothing."""


def take_offload_marks(graph: fx.Graph) -> frozenset[str]:
    """The names of nodes that a user's checkpoint wants offloaded, which are marked as kept from now on."""
    found: set[str] = set()
    for node in graph.nodes:
        if policy_of(node) in _OFFLOADS:
            found.add(node.name)
            save_where_it_stands(node)
        elif node.target is operator.getitem and node.args[0].name in found:
            found.add(node.name)
    return frozenset(found)


def offload(parts: Parts, wanted: Collection[str], results: int, costs: CostFacts) -> Parts:
    """The two graphs, between which these values are in the host's memory, as far as they are the graphs' own.

    The first `results` of the forward are its caller's.
    """
    forward, backward = parts
    (output,) = forward.graph.find_nodes(op="output")
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    chosen = [
        node
        for node in _own_values(output.args[0], results)
        if node.name in wanted and node.name in inputs and inputs[node.name].users
    ]
    if chosen:
        saved = {inputs[node.name]: f"{node.name}_on_host" for node in chosen}
        _copy_out(forward, chosen, costs)
        _copy_back(backward, saved, costs)
        forward.recompile()
        backward.recompile()
    return parts


def _own_values(outputs: Sequence[Any], results: int) -> list[fx.Node]:
    """What a forward keeps, of which neither its caller nor another kept value holds the memory."""
    nodes = [each for each in outputs if isinstance(each, fx.Node)]
    roots = Counter(map(_root, dict.fromkeys(nodes)))
    returned = {_root(each) for each in outputs[:results] if isinstance(each, fx.Node)}
    return [
        node
        for node in dict.fromkeys(each for each in outputs[results:] if isinstance(each, fx.Node))
        if is_worth_copying(node) and _root(node) not in returned and roots[_root(node)] == 1
    ]


def is_worth_copying(node: fx.Node) -> bool:
    """Whether a node makes a tensor that has no more elements than it takes memory."""
    value, root = node.meta.get("val"), _root(node)
    if node.op != "call_function" or root.op == "placeholder" or not isinstance(value, Tensor) or value.is_complex():
        return False
    held = root.meta.get("val")
    return bytes_of_value(value) > 0 and isinstance(held, Tensor) and bytes_of_value(value) >= bytes_of_value(held)


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory a node shows."""
    while getattr(node.target, "is_view", False) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _copy_out(forward: fx.GraphModule, chosen: Sequence[fx.Node], costs: CostFacts) -> None:
    nodes = [node for node in forward.graph.nodes if node.op != "output"]
    numbers = {node: number for number, node in enumerate(nodes)}
    (output,) = forward.graph.find_nodes(op="output")
    copies = [
        CopyOut(
            numbers[node], max(map(numbers.__getitem__, _all_readers(node, output)), default=numbers[node]), seconds
        )
        for node in chosen
        for seconds in (_transfer(node, costs),)
    ]
    waits = waits_for_copies_out([_seconds(node, costs) for node in nodes], copies)
    instead: dict[fx.Node, fx.Node] = {}
    for node, number in zip(chosen, waits, strict=True):
        value = node.meta["val"]
        with forward.graph.inserting_after(node):
            begun = forward.graph.call_function(OFFLOAD, (node,))
        after = nodes[number] if nodes[number] is not node else begun
        with forward.graph.inserting_after(after):
            there = forward.graph.create_node("call_function", OFFLOADED, (begun, node), name=f"{node.name}_on_host")
        begun.meta["val"] = there.meta["val"] = _on_host(value)
        instead[node] = there
    output.args = (type(output.args[0])(instead.get(each, each) for each in output.args[0]),)


def _copy_back(backward: fx.GraphModule, saved: dict[fx.Node, str], costs: CostFacts) -> None:
    nodes = [node for node in backward.graph.nodes if node.op not in ("output", "placeholder")]
    (output,) = backward.graph.find_nodes(op="output")
    numbers = {node: number for number, node in enumerate((*nodes, output))}
    copies = [CopyBack(min(numbers[user] for user in node.users), _transfer(node, costs)) for node in saved]
    starts = starts_of_copies_back([*(_seconds(node, costs) for node in nodes), 0.0], copies)
    places = [*nodes, output]
    for (node, name), copy, start in zip(saved.items(), copies, starts, strict=True):
        value, users = node.meta["val"], list(node.users)
        with backward.graph.inserting_before(places[start]):
            begun = backward.graph.call_function(RELOAD, (node, value.device))
        with backward.graph.inserting_before(places[copy.first]):
            there = backward.graph.call_function(RELOADED, (begun, node))
        begun.meta["val"] = torch.empty_like(value, memory_format=torch.contiguous_format)
        there.meta["val"] = value
        for user in users:
            user.replace_input_with(node, there)
        node.meta = {**node.meta, "val": _on_host(value)}
        node._rename(name)
        node.target = node.name


def _on_host(value: Tensor) -> Tensor:
    return torch.empty_like(value, device="cpu", memory_format=torch.contiguous_format)


def _all_readers(node: fx.Node, output: fx.Node) -> list[fx.Node]:
    """What reads a node, or a view of it, but for the results of the graph."""
    found: list[fx.Node] = []
    for user in node.users:
        if user is not output:
            found.append(user)
            if getattr(user.target, "is_view", False):
                found += _all_readers(user, output)
    return found


def _transfer(node: fx.Node, costs: CostFacts) -> float:
    return bytes_of_value(node.meta["val"]) / (costs.host_bandwidth or _SLOW)


def _seconds(node: fx.Node, costs: CostFacts) -> float:
    return work_of(node) / (costs.bandwidth or _SLOW) if node.op == "call_function" else 0.0
