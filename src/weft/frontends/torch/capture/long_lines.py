"""Elements that are chosen along the lines of long tensors: of some lines after the other.

The lines are sorted, or the like, in copies with positions of 64 bits, many times as large as what is chosen.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from weft.frontends.torch.capture.data_loops import by_batches, is_long_batch

_aten: Any = torch.ops.aten
_CHOICES = frozenset(
    {_aten.topk.default, _aten.mode.default, _aten.kthvalue.default, _aten.median.dim, _aten.nanmedian.dim}
)
_FEW_LINES = 4


def by_lines(node: fx.Node) -> Callable[..., Any] | None:
    """How to compute a choice by parts; nothing where it is none, or of few lines, or not on a processor."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target not in _CHOICES:
        return None
    source = node.args[0]
    assert isinstance(source, fx.Node), "a tensor"
    x: Tensor = source.meta["val"]
    dim = _dim(node.target, node.args, node.kwargs, x.dim())
    lines = (x.shape[:dim].numel(), *x.shape[dim:])
    if x.device.type != "cpu" or not is_long_batch(lines) or lines[0] < _FEW_LINES:
        return None
    return partial(_in_parts, node.target)


def _in_parts(target: torch._ops.OpOverload, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    dim = _dim(target, (x, *args), kwargs, x.dim())
    given = dict(zip(_names(target)[1:], args, strict=False)) | kwargs | {"dim": 1}

    def choose(part: Tensor) -> tuple[Tensor, ...]:
        return tuple(target(part, **given))

    found = by_batches(choose, x.reshape(-1, *x.shape[dim:]))
    return tuple(each.reshape(*x.shape[:dim], *each.shape[1:]) for each in found)


def _dim(target: Any, args: Any, kwargs: Any, rank: int) -> int:
    given = dict(zip(_names(target), args, strict=False)) | kwargs
    return given.get("dim", -1) % max(1, rank)


def _names(target: torch._ops.OpOverload) -> list[str]:
    return [argument.name for argument in target._schema.arguments]
