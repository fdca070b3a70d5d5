"""What tracing knows of a graph's symbolic sizes, and what a call needs to: the import decides by it, so the key of the
cache holds it."""

# Torch's shape environment has no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from weft.frontends.torch.importer.encoding import TensorArgument
from weft.ir.expr import Expr, symbols_of


def size_facts(module: fx.GraphModule) -> tuple[str, ...]:
    """The ranges of symbols, and the conditions that a call must meet for the graph to be used."""
    environment = environment_of(module)
    if environment is None:
        return ()
    ranges: dict[Any, Any] = environment.var_to_range
    asserted = (each for several in environment.deferred_runtime_asserts.values() for each in several)
    conditions = {str(condition.expr) for condition in (*environment.guards, *asserted)}
    return (*sorted(f"{symbol} in {bounds}" for symbol, bounds in ranges.items()), *sorted(conditions))


def condition_count(module: fx.GraphModule) -> int:
    """How many conditions there are; more when one has come up since."""
    environment = environment_of(module)
    if environment is None:
        return 0
    return len(environment.guards) + sum(map(len, environment.deferred_runtime_asserts.values()))


def environment_of(module: fx.GraphModule) -> Any:
    """The shape environment of a captured graph; None where all its sizes are known."""
    for node in module.graph.find_nodes(op="placeholder"):
        meta = node.meta.get("val")
        for size in meta.shape if isinstance(meta, torch.Tensor) else (meta,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def symbols_told(arguments: Any) -> set[str]:
    """The symbols that the arguments of an opaque call are made of."""
    names: set[str] = set()
    for leaf in pytree.tree_leaves(arguments):
        sizes = (leaf.strides or ()) if isinstance(leaf, TensorArgument) else (leaf,) if isinstance(leaf, Expr) else ()
        names.update(*map(symbols_of, sizes))
    return names
