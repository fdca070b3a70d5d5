"""What functions with rules of their own write to, found before they are traced: rules say nothing of writes."""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from weft.diagnostics import calling_line, raising_line
from weft.errors import UnsupportedError
from weft.frontends.torch.func.no_grad_results import storage_of
from weft.frontends.torch.func.users_calls import writes

_is_wrapped: Any = is_functorch_wrapped_tensor


@contextmanager
def refusing_writes(name: str, line: str | None, tensors: Sequence[torch.Tensor], transformed: bool) -> Generator[None]:
    """Raise where what runs inside writes to one of these; torch counts writes, but not where it transforms."""
    before = _versions(tensors)
    with _RefusedWrites(name, tensors) if transformed else nullcontext():
        yield
    if _versions(tensors) != before:
        raise written(name, line)


def written(name: str, line: str | None) -> UnsupportedError:
    """The error of a function that writes to its arguments."""
    hint = "write to a clone, and return that: rules are those of results"
    return UnsupportedError(f"{name} writes to its arguments", location=line, hint=hint)


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often each was written to; of those of inference mode, nobody counts."""
    return [0 if each.is_inference() else each._version for each in tensors]


class _RefusedWrites(TorchDispatchMode):
    """Refuses operators that write to the memory of arguments."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._name = name
        self._memory = {_memory_of(each) for each in tensors} - {None}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        for place, argument in enumerate(func._schema.arguments if func._schema.is_mutable else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else named.get(argument.name)
                tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
                if any(_memory_of(each) in self._memory for each in tensors):
                    raise written(self._name, calling_line())
        return func(*args, **named)


@contextmanager
def looking_at_types(name: str) -> Generator[None]:
    """Run a function on tensors without contents: what it closes over is not to be written to, and known there."""
    try:
        with _RefusedOutside(name):
            yield
    except RuntimeError as error:
        if "FunctionalTensor on its own" not in str(error):
            raise
        raise UnsupportedError(
            f"{name} closes over a value of the function that calls it",
            location=raising_line(error),
            hint="pass it as an argument, of which rules give gradients and tangents",
        ) from error


class _RefusedOutside(TorchFunctionMode):
    """Refuses calls that would write to tensors with contents."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if writes(func, kwargs):
            targets = pytree.tree_leaves((args[:1], (kwargs or {}).get("out")))
            if any(type(each) in (torch.Tensor, torch.nn.Parameter) for each in targets):
                what = f"{self._name} writes to a tensor from outside of it"
                raise UnsupportedError(what, location=calling_line(), hint="write to a clone of it")
        return func(*args, **(kwargs or {}))


def _memory_of(tensor: Any) -> int | None:
    while _is_wrapped(tensor):
        tensor = get_unwrapped(tensor)
    return storage_of(tensor)
