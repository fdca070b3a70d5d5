"""Transformed functions, made once for a function and its options, so that loops trace and compile once.

    for batch in batches:
        gradients = weft.grad(loss)(weights, batch)         the same object in each turn, while `loss` reads the same

They are kept on the function itself and live as long as it does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
import torch.utils._pytree as pytree

from weft.config import Config
from weft.frontends.torch.func.function_contents import KEPT, are_same, contents_of

_T = TypeVar("_T")


class _Kept(dict[Any, tuple[list[Any], Any]]):
    """What was made of a function, and what that read then; neither copied nor saved with the function."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = weakref.ref(owner)  # wrappers take over the attributes of what they wrap

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


def kept(make: Callable[..., _T], function: Callable[..., Any], *options: Any) -> _T:
    """What is made of a function with such options: what was made before, if the function reads what it read then."""
    if torch.compiler.is_dynamo_compiling():  # which traces it, and compiles nothing
        return make(function, *options)
    owner, part = (function.__self__, function.__func__) if isinstance(function, MethodType) else (function, None)
    memory = _memory_of(owner)
    contents = None if memory is None else contents_of(function)
    if memory is None or contents is None:
        return make(function, *options)
    key = (make, part, Config.from_options(), *map(_hashable, options))
    known = memory.get(key)
    if known is not None and not getattr(known[1], "reads_numbers", False) and are_same(known[0], contents):
        return known[1]
    made = make(function, *options)
    memory[key] = contents, made
    return made


def _memory_of(owner: Any) -> _Kept | None:
    """Where what is made of a function is kept; None where it can have no attributes."""
    found = getattr(owner, "__dict__", {}).get(KEPT)
    if isinstance(found, _Kept) and found.owner() is owner:
        return found
    if not isinstance(owner, FunctionType | torch.nn.Module) and not hasattr(type(owner), "weft_reads"):
        return None
    made = _Kept(owner)
    owner.__dict__[KEPT] = made
    return made


def _hashable(option: Any) -> Any:
    leaves, spec = pytree.tree_flatten(option)
    return spec, *((type(leaf), leaf) for leaf in leaves)
