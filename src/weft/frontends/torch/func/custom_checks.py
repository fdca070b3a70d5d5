"""What rules of custom functions give, checked: a gradient for each argument, a tangent for each result.

The same checks hold wherever a rule is called: in graphs that `weft.func` transforms, by autograd, by `torch.func`, and
in what `torch.compile` traces.
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.errors import ShapeError

_LIKE = "a gradient has the shape and the type of its argument, a tangent those of its result; None is 0"
_BATCH = "stack results along the first dimension"


def is_inexact(tensor: torch.Tensor) -> bool:
    """Whether a tensor has derivatives: of real or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def checked_gradients(name: str, line: str | None, made: Any, arguments: Sequence[Any]) -> list[Any]:
    """What a gradient rule gives for each tensor of floats among the arguments; None for 0."""
    _refuse_nothing(name, line, "vjp", made, "None for each argument that has none: (None,) for one")
    made = (made,) if len(arguments) == 1 and not isinstance(made, tuple) else made
    if not isinstance(made, tuple | list) or len(made) != len(arguments):
        count = len(made) if isinstance(made, tuple | list) else type(made).__name__
        raise ShapeError(
            f"the vjp rule of {name} gives {count} for {len(arguments)} arguments", location=line, hint=_LIKE
        )
    found: list[Any] = []
    for argument, gradient in zip(arguments, made, strict=True):
        leaves, spec = pytree.tree_flatten(argument)
        given = [None] * len(leaves) if gradient is None else _children(gradient, spec)
        if given is None:
            raise ShapeError(
                f"the vjp rule of {name} gives another tree than that of its argument", location=line, hint=_LIKE
            )
        for leaf, each in zip(leaves, given, strict=True):
            if isinstance(leaf, torch.Tensor) and is_inexact(leaf):
                _check(name, line, "vjp", each, leaf)
                found.append(each)
    return found


def checked_tangents(name: str, line: str | None, made: Any, results: Sequence[torch.Tensor]) -> list[Any]:
    """What a tangent rule gives for each result of floats; None for 0."""
    _refuse_nothing(name, line, "jvp", made, "(None,) for a tangent of 0")
    given = pytree.tree_leaves(made, is_leaf=lambda leaf: leaf is None)
    if len(given) != len(results):
        raise ShapeError(
            f"the jvp rule of {name} gives {len(given)} for {len(results)} results", location=line, hint=_LIKE
        )
    found: list[Any] = []
    for each, like in zip(given, results, strict=True):
        if is_inexact(like):
            _check(name, line, "jvp", each, like)
            found.append(each)
    return found


def checked_batch(name: str, line: str | None, size: int, made: Any, count: int | None) -> tuple[torch.Tensor, ...]:
    """The results that a batching rule gives, which have the batch in front; `count` says how many the function has."""
    _refuse_nothing(name, line, "batching", made, "the results of the batch")
    found = pytree.tree_leaves(made)
    if bad := next((each for each in found if not isinstance(each, torch.Tensor)), None):
        found = [each for each in found if isinstance(each, torch.Tensor)]
        if count is None or len(found) != count:
            raise ShapeError(
                f"the batching rule of {name} gives {type(bad).__name__} for a tensor", location=line, hint=_BATCH
            )
    if count is not None and len(found) != count:
        raise ShapeError(
            f"the batching rule of {name} gives {len(found)} results for {count}", location=line, hint=_BATCH
        )
    for each in found:
        if each.dim() == 0 or each.shape[0] != size:
            raise ShapeError(
                f"the batching rule of {name} gives results without the batch of {size} in front",
                location=line,
                hint=_BATCH,
            )
    return tuple(found)


def _refuse_nothing(name: str, line: str | None, rule: str, made: Any, instead: str) -> None:
    if made is None:
        raise ShapeError(f"the {rule} rule of {name} returns nothing", location=line, hint=f"return {instead}")


def zeros_for_none(found: Any, like: torch.Tensor) -> torch.Tensor:
    """What a rule gave, as a tensor of its own."""
    if found is None:
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    return found.clone(memory_format=torch.contiguous_format)


def _check(name: str, line: str | None, rule: str, found: Any, like: torch.Tensor) -> None:
    if found is None:
        return
    if not isinstance(found, torch.Tensor) or found.shape != like.shape or found.dtype != like.dtype:
        kinds = [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else type(x) for x in (found, like)]
        raise ShapeError(f"the {rule} rule of {name} gives {kinds[0]} for {kinds[1]}", location=line, hint=_LIKE)


def _children(tree: Any, spec: pytree.TreeSpec) -> list[Any] | None:
    leaves, own = pytree.tree_flatten(tree, is_leaf=lambda leaf: leaf is None)
    return leaves if own == spec else None
