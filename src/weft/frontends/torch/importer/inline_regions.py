"""Takes regions that a program has compiled once (`torch.compiler.nested_compile_region`) into the graph around them.

    %r = invoke_subgraph @region, %x, %w          %m = mm %x, %w
    %y = getitem %r, 0                     →      %y = relu %m
    %s = getitem %r, 1                            %s = le %y, 0

Blocks that repeat are found later, in the whole graph. What tracing records of the results of such a call must not be
believed: all calls of a region have the same tensors there, as if their results were in the same memory.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from weft.frontends.torch.importer.inlining import graph_of


def inline_regions(module: fx.GraphModule) -> None:
    """Put a copy of a region's nodes in the place of each of its calls, calls in regions included."""
    found = False
    while (first := _first_call(module.graph)) is not None:
        _inline(module, *first)
        found = True
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()


def _first_call(graph: fx.Graph) -> tuple[fx.Node, fx.GraphModule] | None:
    """A call that is left, and the region that it calls."""
    regions = ((node, _region(node)) for node in graph.nodes)
    return next(((node, region) for node, region in regions if region is not None), None)


def _region(node: fx.Node) -> fx.GraphModule | None:
    """The graph that a node calls, if it calls a region."""
    is_call = node.op == "call_function" and getattr(node.target, "_name", None) == "invoke_subgraph"
    return graph_of(node.args[0]) if is_call else None


def _inline(module: fx.GraphModule, call: fx.Node, region: fx.GraphModule) -> None:
    operands = iter(call.args[2:])
    values: dict[fx.Node, Any] = {}
    returned: Any = ()
    for inner in region.graph.nodes:
        if inner.op == "placeholder":
            values[inner] = next(operands)
        elif inner.op == "output":
            returned = fx.map_arg(inner.args[0], values.__getitem__)
        else:
            values[inner] = _copied(module, call, region, inner, values)
    for user in list(call.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(returned[user.args[1]])
            module.graph.erase_node(user)
    if call.users:
        call.replace_all_uses_with(returned)
    module.graph.erase_node(call)


def _copied(
    module: fx.GraphModule, call: fx.Node, region: fx.GraphModule, inner: fx.Node, values: dict[fx.Node, Any]
) -> fx.Node:
    """A copy of a region's node before a call, as part of the forward or backward that the call is a part of."""
    with module.graph.inserting_before(call):
        made = module.graph.node_copy(inner, values.__getitem__)
    if inner.op == "get_attr":
        made.target = f"{call.name}_{str(inner.target).replace('.', '_')}"
        setattr(module, made.target, operator.attrgetter(str(inner.target))(region))
    else:
        made.meta["val"] = _recorded(made)
    for name in ("partitioner_tag", "recompute"):
        if name in call.meta:
            made.meta[name] = call.meta[name]
    return made


def _recorded(node: fx.Node) -> Any:
    """What tracing would have recorded of a node, of what it has recorded of its operands."""
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    if target is operator.getitem:
        return target(*args)
    mode = detect_fake_mode([source.meta.get("val") for source in node.all_input_nodes])
    if mode is None or not isinstance(target, torch._ops.OpOverload):  # pyright: ignore[reportPrivateUsage]
        return node.meta.get("val")
    with mode, torch.no_grad():
        return target(*args, **kwargs)
