"""Tracing that the import does itself.

Operators without a converter are traced through torch's decomposition of them, into operators that may have one. Random
operators of checkpointed regions, which the partitioner wraps so that they draw the same numbers again, are traced for
the types of their results, which it does not record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

from weft.errors import UnsupportedError
from weft.frontends.torch.capture.decompositions import decompositions

WITH_STATES = ("run_and_save_rng_state", "run_with_rng_state")
"""What draws numbers in a checkpoint, to draw them again in the backward."""


def trace_decomposition(node: fx.Node, decomposition: Callable[..., Any]) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph of the decomposition for this node's arguments, and the nodes that its placeholders stand for."""
    leaves, structure = pytree.tree_flatten((node.args, dict(node.kwargs)))
    leaves = [graph_of(leaf) or leaf for leaf in leaves]
    sources = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    metas = [source.meta["val"] for source in sources]
    modes = [meta.fake_mode for meta in metas if isinstance(meta, FakeTensor)]
    if not modes:
        raise UnsupportedError("no converter, and nothing to trace its decomposition with")

    def call(*values: Any) -> Any:
        given = iter(values)
        filled = [next(given) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return decomposition(*args, **kwargs)

    try:
        with modes[0], torch.no_grad():
            traced = make_fx(call, decomposition_table=decompositions())(*metas)
    except (RuntimeError, NotImplementedError, TypeError, AssertionError) as error:
        raise UnsupportedError(f"no converter, and its decomposition cannot be traced: {error}") from error
    return traced, sources


def graph_of(leaf: Any) -> fx.GraphModule | None:
    """The graph that an argument of a higher-order operator stands for, if it does for one."""
    if not isinstance(leaf, fx.Node) or leaf.op != "get_attr":
        return None
    found = operator.attrgetter(str(leaf.target))(leaf.graph.owning_module)
    return found if isinstance(found, fx.GraphModule) else None


def record_random_results(node: fx.Node) -> None:
    """Record the results of a random operator that saves or restores the state of the generator."""
    name = getattr(node.target, "_name", None)
    if node.op != "call_function" or name not in WITH_STATES:
        return
    saves = name == WITH_STATES[0]
    drawing: Any
    drawing, *args = node.args if saves else node.args[1:]
    metas, kwargs = pytree.tree_map_only(fx.Node, lambda source: source.meta["val"], (args, dict(node.kwargs)))
    recorded = (other.meta.get("val") for other in node.graph.nodes)
    mode = next((meta.fake_mode for meta in recorded if isinstance(meta, FakeTensor)), None)
    if mode is None:
        return
    with unset_fake_temporarily():
        state_size = torch.default_generator.get_state().numel()
    with mode:
        drawn = drawing(*metas, **kwargs)
        state = torch.empty(state_size, dtype=torch.uint8)
    node.meta["val"] = (state, drawn) if saves else drawn
    for user in node.users if saves else ():
        user.meta.setdefault("val", state if user.args[1] == 0 else drawn)
