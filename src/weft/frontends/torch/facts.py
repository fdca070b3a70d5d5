"""What tracing knows of a graph's symbolic sizes: the import decides by it, so it is part of the key of the cache."""

# Torch's shape environment has no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def size_facts(module: fx.GraphModule) -> tuple[str, ...]:
    """The ranges of symbols, and the conditions that a call must meet for the graph to be used."""
    environment = _environment(module)
    if environment is None:
        return ()
    ranges: dict[Any, Any] = environment.var_to_range
    asserted = (each for several in environment.deferred_runtime_asserts.values() for each in several)
    conditions = {str(condition.expr) for condition in (*environment.guards, *asserted)}
    return (*sorted(f"{symbol} in {bounds}" for symbol, bounds in ranges.items()), *sorted(conditions))


def _environment(module: fx.GraphModule) -> Any:
    """The shape environment of a captured graph; None where all its sizes are known."""
    for node in module.graph.find_nodes(op="placeholder"):
        meta = node.meta.get("val")
        for size in meta.shape if isinstance(meta, torch.Tensor) else (meta,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None
