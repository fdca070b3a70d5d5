"""What AOTAutograd traced, noted on the way: whether it draws random numbers, and which arguments it reads."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx


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
        self.reads = frozenset(n for n, node in enumerate(graph.find_nodes(op="placeholder")) if node.users)
