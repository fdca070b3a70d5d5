"""Takes regions that a program has compiled once (`torch.compiler.nested_compile_region`) into the graph around them.

    %r = invoke_subgraph @region, %x, %w          %m = mm %x, %w
    %y = getitem %r, 0                     →      %y = relu %m
    %s = getitem %r, 1                            %s = le %y, 0

Blocks that repeat are found later, in the whole graph. What tracing records of the results of such a call must not be
believed: all calls of a region have the same tensors there, as if their results were in the same memory. So what is
copied, and what looks at the memory of a result, is recorded again.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.frontends.torch.importer.inlining import graph_of

_ASKS_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def inline_regions(module: fx.GraphModule) -> None:
    """Put a copy of a region's nodes in the place of each of its calls, calls in regions included."""
    inlining = _Inlining(module)
    while (first := _first_call(module.graph)) is not None:
        inlining.inline(*first)
    if inlining.copies:
        module.graph.eliminate_dead_code()
        inlining.record()
        module.recompile()


def _first_call(graph: fx.Graph) -> tuple[fx.Node, fx.GraphModule] | None:
    """A call that is left, and the region that it calls."""
    regions = ((node, _region(node)) for node in graph.nodes)
    return next(((node, region) for node, region in regions if region is not None), None)


def _region(node: fx.Node) -> fx.GraphModule | None:
    """The graph that a node calls, if it calls a region."""
    is_call = node.op == "call_function" and getattr(node.target, "_name", None) == "invoke_subgraph"
    return graph_of(node.args[0]) if is_call else None


@dataclass(frozen=True)
class _Inlining:
    """What becomes of a graph whose calls are inlined.

    `former` is what was recorded of a node before, or of the results of calls that it stands for. It is kept so that
    no other tensor can take its place in memory, by which tensors are told apart.
    """

    module: fx.GraphModule
    copies: set[fx.Node] = field(default_factory=set[fx.Node])
    former: defaultdict[fx.Node, list[Any]] = field(default_factory=lambda: defaultdict[fx.Node, list[Any]](list))

    def inline(self, call: fx.Node, region: fx.GraphModule) -> None:
        operands = iter(call.args[2:])
        values: dict[fx.Node, Any] = {}
        returned: Any = ()
        for inner in region.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(operands)
            elif inner.op == "output":
                returned = fx.map_arg(inner.args[0], values.__getitem__)
            else:
                values[inner] = self._copied(call, region, inner, values)
        for user in list(call.users):
            if user.target is operator.getitem:
                result = returned[user.args[1]]
                if isinstance(result, fx.Node):
                    # What stood for a result of a call of this region may itself be one of a call in the region.
                    self.former[result] += [user.meta.get("val"), *self.former.pop(user, ())]
                user.replace_all_uses_with(result)
                self.module.graph.erase_node(user)
        if call.users:
            call.replace_all_uses_with(returned)
        self.module.graph.erase_node(call)

    def _copied(self, call: fx.Node, region: fx.GraphModule, inner: fx.Node, values: dict[fx.Node, Any]) -> fx.Node:
        """A copy of a region's node before a call, as part of the forward or backward that the call is a part of."""
        with self.module.graph.inserting_before(call):
            made = self.module.graph.node_copy(inner, values.__getitem__)
        if inner.op == "get_attr":
            made.target = f"{call.name}_{str(inner.target).replace('.', '_')}"
            setattr(self.module, made.target, operator.attrgetter(str(inner.target))(region))
        else:
            self.copies.add(made)
        for name in ("partitioner_tag", "recompute"):
            if name in call.meta:
                made.meta[name] = call.meta[name]
        return made

    def record(self) -> None:
        """Record again what is copied, and what looks at memory that was recorded otherwise, in the graph's order.

        All else has memory of its own, and keeps the sizes and strides that AOTAutograd knows of it.
        """
        nodes = self.module.graph.nodes
        mode = detect_fake_mode([node.meta.get("val") for node in nodes])
        if mode is None:
            return
        for node in nodes:
            value = node.meta.get("val")
            memory = _memory(value) if node.op == "call_function" else set[int]()
            formers = (self.former[source] for source in node.all_input_nodes if source in self.former)
            if node in self.copies or any(memory & _memory(former) for former in formers):
                self.former[node].append(value)
                if (found := _recorded(node, mode)) is not None:
                    node.meta["val"] = found


def _recorded(node: fx.Node, mode: FakeTensorMode) -> Any:
    """What tracing would have recorded of a node, of what it has recorded of its operands."""
    target: Any = node.target
    value = node.meta.get("val")
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    is_operator = isinstance(target, torch._ops.OpOverload)  # pyright: ignore[reportPrivateUsage]
    is_number = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    with mode, torch.no_grad():
        # Sizes that depend on data have their symbols, which other nodes hold, from where they were traced.
        if (is_operator and _ASKS_DATA.isdisjoint(target.tags)) or is_number or target is operator.getitem:
            try:
                return target(*args, **kwargs)
            except (RuntimeError, NotImplementedError, TypeError, AssertionError):
                pass
        # Nothing is lost if it is told to be apart from all others: where results lie is the importer's to say.
        return pytree.tree_map_only(torch.Tensor, _apart, value)


def _apart(value: torch.Tensor) -> torch.Tensor:
    """A tensor as another one, in memory of its own."""
    if value.layout != torch.strided or value.is_conj() or value.is_neg():
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _memory(value: Any) -> set[int]:
    """What tells the memory of recorded tensors from that of others."""
    tensors = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return {
        tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
        for tensor in tensors
        if tensor.layout == torch.strided
    }
