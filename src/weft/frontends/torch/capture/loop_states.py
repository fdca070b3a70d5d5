"""What loops carry, in memory of its own: torch traces no loop that begins with what its turns read beside it.

while_loop(going, turn, (i, x), (x,))  ─►  while_loop(going, turn, (i, x.clone()), (x,))       turn: (i + 1, y * x)
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

_CARRIED = {"while_loop": 2, "scan": 1}
"""Where what is carried stands, by the names of the operators."""


def with_own_states(operator: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an operator of torch's: those of a loop carry what shares memory with no other operand."""
    if not isinstance(operator, torch._ops.HigherOrderOperator) or operator._name not in _CARRIED:
        return args
    place = _CARRIED[operator._name]
    shared = _shared(args[place], args[place + 1 :], _memory)
    carried = [each.clone() if n in shared else each for n, each in enumerate(args[place])]
    return (*args[:place], type(args[place])(carried), *args[place + 1 :])


def with_own_loop_states(module: fx.GraphModule) -> fx.GraphModule:
    """A graph in which no loop carries what shares memory with another of its operands."""
    for part in (each for each in module.modules() if isinstance(each, fx.GraphModule)):
        for name, place in _CARRIED.items():
            loops = part.graph.find_nodes(op="call_function", target=getattr(torch.ops.higher_order, name))
            if any([_copy_shared(part.graph, node, place) for node in loops]):
                part.recompile()
    return module


def _copy_shared(graph: fx.Graph, loop: fx.Node, place: int) -> bool:
    """Let a loop carry copies where it must; whether there are any."""
    operands: tuple[Any, ...] = tuple(loop.args)
    carried = list(operands[place])
    shared = _shared(carried, operands[place + 1 :], _memory_of_node)
    for n in shared:
        with graph.inserting_before(loop):
            made = graph.call_method("clone", (carried[n],))
        made.meta, carried[n] = dict(carried[n].meta), made
    if shared:
        loop.update_arg(place, tuple(carried))
    return bool(shared)


def _shared(carried: Sequence[Any], groups: Sequence[Any], memory: Callable[[Any], Hashable]) -> list[int]:
    """The places of what is carried that lies in the memory of something before it, or of other operands."""
    others = [each for operands in groups if isinstance(operands, list | tuple) for each in operands]
    seen, found = {memory(each) for each in others} - {None}, list[int]()
    for n, each in enumerate(carried):
        key = memory(each)
        if key is not None and key in seen:
            found.append(n)
        seen.add(key)
    return found


def _memory(value: Any) -> Hashable:
    """What tells the memory of a tensor from that of others; None for what has none."""
    has = isinstance(value, Tensor) and torch._C._has_storage(value)
    return value.untyped_storage()._cdata if has else None


def _memory_of_node(node: Any) -> Hashable:
    """What `_memory` says of a node's value; the node itself where tracing gave its tensor no memory."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return (_memory(value) or node) if isinstance(value, Tensor) else None
