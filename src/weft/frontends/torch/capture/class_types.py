"""The type that classes of `one_hot` have, asked of the graph that Dynamo captured, before torch takes it apart.

    one_hot %classes: i64     →     the graph as it is
    one_hot %classes: i32     →     DTypeError, where eager has a RuntimeError

Of tensors that stand for others torch compares classes with numbers, before it asks for their type.
"""

# Torch's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from weft.errors import DTypeError
from weft.frontends.torch.locations import first_line

_ONE_HOT: tuple[Any, ...] = (functional.one_hot, torch.ops.aten.one_hot.default, torch.ops.aten.one_hot)


def check_classes(module: fx.GraphModule) -> None:
    """Raise for classes that are not i64."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in _ONE_HOT:
            continue
        given = node.args[0] if node.args else node.kwargs.get("tensor", node.kwargs.get("self"))
        value = given.meta.get("example_value") if isinstance(given, fx.Node) else None
        if isinstance(value, Tensor) and value.dtype != torch.int64:
            raise DTypeError(
                f"classes of one_hot are int64, not {value.dtype}",
                location=first_line([node]),
                hint="classes.long() makes them so",
            )
