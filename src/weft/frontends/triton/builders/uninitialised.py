"""Memory that nothing was written to: while `watching`, `torch.empty` and its kin fill it with a pattern.

Whatever writes there, a kernel or torch, replaces the pattern; an element that still has it was never written. The
pattern is 8 random bytes, so that a number that happens to equal it is no concern; elements of one or two bytes count
as written once anything in their 8 bytes is.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

_PATTERN = np.frombuffer(b"\x9d\xe3\x5a\xf7\xb1\x6c\xe9\xd2", np.uint8)
_WORD = _PATTERN.view(np.uint64)[0]
_HALVES = _PATTERN.view(np.uint32)
_REMEMBERED = 100_000

# Beginning and size of storages. That one was freed since does no harm: its memory is then somebody's, with the
# pattern only where nothing was written.
_storages: OrderedDict[tuple[int, int], None] = OrderedDict()


def bytes_at(start: int, size: int) -> np.ndarray[Any, Any]:
    """The memory at an address, as an array that shares it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


def is_poisoned(start: int, size: int) -> bool:
    """May a storage hold the pattern?"""
    return (start, size) in _storages


def poison(start: int, size: int) -> None:
    """Fill a storage with the pattern."""
    if not size:
        return
    data = bytes_at(start, size)
    whole = size // 8 * 8
    data[:whole].view(np.uint64)[:] = _WORD
    data[whole:] = _PATTERN[: size - whole]
    _storages[(start, size)] = None
    while len(_storages) > _REMEMBERED:
        _storages.popitem(last=False)


def untouched(data: np.ndarray[Any, Any], offset: np.ndarray[Any, Any], itemsize: int) -> np.ndarray[Any, Any]:
    """For elements at byte offsets of a storage: does nothing but the pattern lie there?"""
    if itemsize == 4 and not (offset % 4).any():
        halves = data[: data.size // 4 * 4].view(np.uint32)
        place = offset // 4
        return halves[place] == _HALVES[place % 2]
    words = data[: data.size // 8 * 8].view(np.uint64)
    place = offset // 8
    inside = place < words.size
    return inside & (words[np.where(inside, place, 0)] == _WORD) if words.size else np.zeros(offset.shape, bool)


def _poisoning(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def make(*args: Any, **keywords: Any) -> Any:
        tensor = function(*args, **keywords)
        plain = type(tensor).__name__ == "Tensor" and str(tensor.layout) == "torch.strided"
        if plain and tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            poison(storage.data_ptr(), storage.nbytes())
        return tensor

    return make


def watch() -> Callable[[], None]:
    """Let what torch makes uninitialised be known as such to interpreted kernels; gives what ends it."""
    if importlib.util.find_spec("torch") is None:
        return lambda: None
    import torch

    places: list[tuple[Any, str]] = [
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
        (torch.Tensor, "new_empty_strided"),
    ]
    before = [getattr(owner, name) for owner, name in places]
    for (owner, name), function in zip(places, before, strict=True):
        setattr(owner, name, _poisoning(function))

    def end() -> None:
        for (owner, name), function in zip(places, before, strict=True):
            setattr(owner, name, function)

    return end


@contextmanager
def watching() -> Generator[None]:
    """`watch`, for a block."""
    end = watch()
    try:
        yield
    finally:
        end()
