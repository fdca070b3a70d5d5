"""What nodes of a graph that Dynamo captured do beside giving results: they write to tensors and switch modes."""

# Torch's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_IN_PLACE = frozenset(
    (
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod),
        *(operator.ipow, operator.imatmul, operator.iand, operator.ior, operator.ixor),
        *(operator.ilshift, operator.irshift, operator.iconcat, operator.setitem),
    )
)
_KEYWORDS = (operator.and_, operator.or_, operator.not_, operator.is_)
"""Named so since Python has the words for itself; they write to nothing."""
_NORMS = ("batch_norm", "instance_norm", "native_batch_norm")
_RUNNING = ("max_norm", "running_mean", "running_var")
"""Arguments of functions that write to another one than their first: what rows are made of, or statistics."""
_MODES = ("_enter_", "_exit_", "_set_", "set_", "_push_", "_pop_")


def changes_what_follows(node: fx.Node) -> bool:
    """Whether a node may write to a tensor of floats, or changes how torch carries out what follows it."""
    if node.op == "call_module" or isinstance(node.target, HigherOrderOperator):
        return True  # what is inside is not looked at
    if node.op not in ("call_method", "call_function"):
        return False
    name = node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))
    if node.op == "call_function" and name.startswith(_MODES):
        return True
    if _writes_to_buffers(node, name):
        return True
    written = node.kwargs.get("out")
    if written is None and not _writes(node, name):
        return False
    # Labels are no floats, and what is projected is.
    return not _are_whole(node.args[0] if written is None and node.args else written)


def writes(node: fx.Node) -> bool:
    """Whether a node may write to a tensor that it is given, of whatever type."""
    if node.op == "call_module" or isinstance(node.target, HigherOrderOperator):
        return True
    name = node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))
    return node.kwargs.get("out") is not None or _writes(node, name)


def _writes(node: fx.Node, name: str) -> bool:
    if node.target in _IN_PLACE or node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    if isinstance(node.target, OpOverloadPacket):
        return any(getattr(node.target, each)._schema.is_mutable for each in node.target.overloads())
    if name.startswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return (name.endswith("_") and node.target not in _KEYWORDS) or _given(node).get("inplace") is True


def _writes_to_buffers(node: fx.Node, name: str) -> bool:
    """Whether a function may change weights or statistics that it reads: no name says that it does."""
    has_names = getattr(node.target, "__code__", None) is not None
    if node.op == "call_function" and name.partition(".")[0] in _NORMS and not has_names:
        return True  # torch's own, whose arguments have names only where the caller gives them
    return any(_given(node).get(each) is not None for each in _RUNNING)


def _given(node: fx.Node) -> dict[str, Any]:
    """The arguments of a function that is written in Python, by their names."""
    code: Any = getattr(node.target, "__code__", None)
    names: tuple[str, ...] = () if code is None else code.co_varnames[: code.co_argcount]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _are_whole(value: Any) -> bool:
    """Whether a value is known to be a tensor of whole numbers."""
    known = value.meta.get("example_value") if isinstance(value, fx.Node) else None
    return isinstance(known, Tensor) and not known.dtype.is_floating_point and not known.dtype.is_complex


def is_differentiated_inside(graph: fx.Graph) -> bool:
    """Whether a graph has functions of `torch.func`, forward mode or `torch.autograd.grad` inside."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        where, name = str(getattr(node.target, "__module__", "")), str(getattr(node.target, "__name__", ""))
        if "functorch" in where or "dual" in name or node.target in (torch.autograd.grad, torch.autograd.backward):
            return True
    return False
