"""Rows in groups, each multiplied with a matrix of its group, as operators of torch that tracing can differentiate.

The backward of transformers' `grouped_mm_fallback` asks how many rows each group has, which no tracer can answer: any
graph that trains it breaks there, and is traced anew by parts. `weft::grouped_mm` computes the same, and its gradients
are operators, too: that of the rows itself, that of the matrices `weft::grouped_outer`.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

_library = torch.library.Library("weft", "FRAGMENT")
_library.define("grouped_mm(Tensor x, Tensor weights, Tensor ends) -> Tensor")
_library.define("grouped_outer(Tensor x, Tensor y, Tensor ends) -> Tensor")
_operators: Any = torch.ops.weft


def _groups(ends: Tensor) -> Iterator[tuple[int, int, int]]:
    """The number of each group, where its rows begin and where they end: one that has none ends where it begins."""
    start = 0
    for number, end in enumerate(ends.tolist()):
        yield number, start, max(start, end)
        start = max(start, end)


def _grouped_mm(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    result, done = x.new_empty(x.shape[0], weights.shape[2]), 0
    for number, start, done in _groups(ends):
        if done > start:
            torch.mm(x[start:done], weights[number], out=result[start:done])
    result[done:].zero_()  # rows of no group
    return result


def _grouped_outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    result = x.new_empty(ends.shape[0], x.shape[1], y.shape[1])
    for number, start, end in _groups(ends):
        if end > start:
            torch.mm(x[start:end].t(), y[start:end], out=result[number])
        else:
            result[number].zero_()
    return result


def _fake_mm(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


def _fake_outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], y.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weights, ends = ctx.saved_tensors
    rows = _operators.grouped_mm(grad, weights.transpose(1, 2), ends)
    # A parameter is often given transposed. Autograd would copy a gradient that does not lie as it does.
    if weights.stride(1) == 1 and weights.stride(2) != 1:
        return rows, _operators.grouped_outer(grad, x, ends).transpose(1, 2), None
    return rows, _operators.grouped_outer(x, grad, ends), None


_library.impl("grouped_mm", _grouped_mm, "CompositeExplicitAutograd")
_library.impl("grouped_outer", _grouped_outer, "CompositeExplicitAutograd")
torch.library.register_fake("weft::grouped_mm", _fake_mm)
torch.library.register_fake("weft::grouped_outer", _fake_outer)
torch.library.register_autograd("weft::grouped_mm", _gradients, setup_context=_keep)
GROUPED_PRODUCTS: tuple[Any, ...] = (_operators.grouped_mm.default, _operators.grouped_outer.default)


def with_traced_gradients(module: fx.GraphModule) -> fx.GraphModule:
    """A graph that Dynamo captured, and those inside of it, with such products that tracing can differentiate."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _trace_gradients(part)
    return module


def _trace_gradients(module: fx.GraphModule) -> None:
    found = [
        node
        for node in module.graph.nodes
        if node.op == "call_function" and str(node.target).startswith("transformers.grouped_mm_fallback")
    ]
    for node in found:
        names = ("input", "weight", "offs")
        node.args = (*node.args, *(node.kwargs[name] for name in names[len(node.args) :]))
        node.kwargs = {}
        node.target = _operators.grouped_mm.default
    if found:
        module.recompile()
