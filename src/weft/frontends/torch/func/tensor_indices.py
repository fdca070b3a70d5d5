"""Indices that are tensors of one number, in functions that are captured: torch would ask for the number.

x[:, i]  ─►  x[:, i.reshape(1)].squeeze(1)          x[i] = y  ─►  x[i.reshape(1)] = y
"""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from types import EllipsisType
from typing import Any, TypeGuard

import torch
from torch import Tensor


def read(x: Tensor, index: Any) -> Tensor:
    """`x[index]`, all of whose tensors are of one number."""
    whole, numbers = _apart(x, index)
    found = x[whole]
    for dim, number in reversed(numbers):
        found = found[(*(slice(None) for _ in range(dim)), number.reshape(1))].squeeze(dim)
    return found


def write(x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`, where one tensor of one number is in the index."""
    whole, ((dim, number),) = _apart(x, index)
    view = x[whole]
    after = view.dim() - dim - 1
    if isinstance(value, Tensor) and value.dim() > after:
        value = value.unsqueeze(value.dim() - after)
    view[(*(slice(None) for _ in range(dim)), number.reshape(1))] = value


def is_read(func: Any, args: Any) -> bool:
    """Whether a call reads by tensors of one number, and by no others."""
    return func is Tensor.__getitem__ and bool(_numbers(args[1]))


def is_written(func: Any, args: Any) -> bool:
    """Whether a call writes by one such tensor, and by no others."""
    return func is Tensor.__setitem__ and len(_numbers(args[1])) == 1


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _numbers(index: Any) -> list[Tensor]:
    """The tensors of one number of an index; none where it has others, or lists."""
    parts = _parts(index)
    if any(
        not isinstance(part, Tensor | int | slice | EllipsisType | None) or isinstance(part, bool) for part in parts
    ):
        return []
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return tensors if all(map(_is_number, tensors)) else []


def _is_number(part: Any) -> TypeGuard[Tensor]:
    return part.dim() == 0 and part.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)


def _apart(x: Tensor, index: Any) -> tuple[tuple[Any, ...], list[tuple[int, Tensor]]]:
    """The index with whole dimensions for its tensors, and these with the dimensions of what it gives."""
    parts, whole, found, dim = _parts(index), [], [], 0
    taken = sum(1 for part in parts if part is not None and not isinstance(part, EllipsisType))
    for part in parts:
        if isinstance(part, Tensor):
            found.append((dim, part))
        whole.append(slice(None) if isinstance(part, Tensor) else part)
        dim += x.dim() - taken if isinstance(part, EllipsisType) else 0 if isinstance(part, int) else 1
    return tuple(whole), found
