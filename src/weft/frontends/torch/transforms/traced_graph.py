"""What AOTAutograd traced, noted on the way: whether it draws random numbers, and which arguments it reads."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

_STATISTICS = (3, 4)
"""The results of batch norm that are new running statistics."""


@dataclass
class TracedGraph:
    """Notes on one traced graph; nothing is known before there is one."""

    is_random: bool = False
    reads: frozenset[int] = frozenset()

    def note(self, graph: fx.Graph) -> None:
        """Note a graph whose first placeholders are the arguments."""
        self.is_random = any(
            node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            for node in graph.nodes
        )
        read = _read(graph)
        self.reads = frozenset(n for n, node in enumerate(graph.find_nodes(op="placeholder")) if node in read)


def _read(graph: fx.Graph) -> set[fx.Node]:
    """Values that results, or calls whose results nobody takes, are made of."""
    read = set[fx.Node]()
    for node in reversed(graph.nodes):
        if node in read or not node.users:
            read.update(_operands(node))
    return read


def _operands(node: fx.Node) -> Sequence[fx.Node]:
    """What a node computes with: in training, batch norm has running statistics only to give new ones."""
    if node.target is torch.ops.aten._native_batch_norm_legit_functional.default:
        x, weight, bias, mean, variance, training = node.args[:6]
        if training and not any(user.args[1] in _STATISTICS for user in node.users):
            return [each for each in node.all_input_nodes if each not in (mean, variance) or each in (x, weight, bias)]
    return node.all_input_nodes
