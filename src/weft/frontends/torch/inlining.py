"""Operators without a converter, traced through torch's decomposition of them into operators that may have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

from weft.errors import UnsupportedError
from weft.frontends.torch.decompositions import decompositions


def trace_decomposition(node: fx.Node, decomposition: Callable[..., Any]) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph of the decomposition for this node's arguments, and the nodes that its placeholders stand for."""
    leaves, structure = pytree.tree_flatten((node.args, dict(node.kwargs)))
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
