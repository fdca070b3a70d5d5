"""Trees of the usual kinds, taken apart and put together in every call: as quick as Python lets.

Torch's pytrees know every registered class, and take a hundred microseconds for the weights of a small network, as long
as what is computed with them. Tuples, lists, dictionaries and plain leaves need none of that; others go the long way.
"""

# Trees have no types that can be followed.
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

_PLAIN = frozenset((int, float, bool, str, type(None), complex, torch.dtype, torch.device))

Build = Callable[[Iterator[Any]], Any]


class Signature:
    """What programs differ by, the structure and types of a call's arguments; and its tensors."""

    __slots__ = ("key", "tensors")

    def __init__(self, key: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
        self.key, self.tensors = key, tensors


def signature_of(tree: Any) -> Signature | None:
    """Of arguments that hold nothing but what is usual; None for others."""
    tensors: list[torch.Tensor] = []
    key: list[Any] = []
    return Signature(tuple(key), tensors) if _read(tree, tensors, key) else None


def _read(tree: Any, tensors: list[torch.Tensor], key: list[Any]) -> bool:
    kind: Any = type(tree)
    if kind is tuple or kind is list:
        key.append((kind, len(tree)))
        return all([_read(each, tensors, key) for each in tree])
    if kind is dict:
        key.append((kind, *tree))
        return all([_read(each, tensors, key) for each in tree.values()])
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        key.append((tree.shape, tree.dtype, tree.device))
        return True
    key.append(value_key(tree))
    return kind in _PLAIN


def value_key(value: Any) -> tuple[Any, ...]:
    """What programs differ by in a value that is no tensor: zeros have signs, though they are equal."""
    if isinstance(value, float):
        return type(value), value, math.copysign(1, value)
    if isinstance(value, complex):
        return type(value), value, math.copysign(1, value.real), math.copysign(1, value.imag)
    return type(value), value


def builder_of(tree: Any, leaf: object) -> Build | None:
    """What makes a tree like this one, of such leaves alone, of others in order; None where it is not usual."""
    kind: Any = type(tree)
    if tree is leaf:
        return next
    if kind is not tuple and kind is not list and kind is not dict:
        return None
    parts = [builder_of(each, leaf) for each in (tree.values() if kind is dict else tree)]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if kind is dict:
        names = list(tree)
        return lambda leaves: {name: part(leaves) for name, part in zip(names, known, strict=True)}
    return lambda leaves: kind([part(leaves) for part in known])
