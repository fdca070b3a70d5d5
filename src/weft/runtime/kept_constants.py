"""Constants of programs on disk, prepared and packed: later processes map them, and read no weights at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.diagnostics import warn
from weft.errors import ParseError
from weft.ir.types import DTYPES, dtype_of_numpy
from weft.runtime.cache import DiskCache
from weft.runtime.cache_entry import CacheEntry
from weft.runtime.dlpack import array_at
from weft.runtime.paged_data import PagedData
from weft.runtime.strides import lowest, span

_LEAST_BYTES = 1 << 22
"""Constants below this are made as quickly as they are found."""
_PAGES = "constants"


def keep_constants(cache: DiskCache, key: str, arrays: Mapping[int, np.ndarray]) -> None:
    """Keep the arrays of constant buffers, if they are worth their place: not small, and not most of the cache."""
    size = sum(each.nbytes for each in arrays.values())
    if not _LEAST_BYTES <= size <= cache.limit_bytes // 2 or not cache.enabled:
        return
    memory: dict[int, np.ndarray] = {}
    for number, array in arrays.items():
        found = _memory(array)
        if found is None:
            return
        memory[number] = found
    pages = PagedData(list(memory.values()))
    described = [
        [number, dtype_of_numpy(array.dtype).name, list(array.shape), _elements(array), at + _before(array)]
        for (number, array), at in zip(arrays.items(), pages.offsets(), strict=True)
    ]
    cache.put(key, {"constants": described}, {_PAGES: pages})


def find_constants(cache: DiskCache, key: str) -> Mapping[int, np.ndarray] | None:
    """The arrays that were kept, in memory that is mapped; None where there are none."""
    entry = cache.get(key)
    if entry is None:
        return None
    try:
        return _arrays(entry)
    except (LookupError, ValueError, TypeError, OverflowError, ParseError) as error:
        warn("cache", "kept constants are not used", str(error)[:200], "they are made anew of the weights")
        return None


def _arrays(entry: CacheEntry) -> dict[int, np.ndarray]:
    content = np.frombuffer(entry.pages[_PAGES], np.uint8)
    address = content.__array_interface__["data"][0]
    found: dict[int, np.ndarray] = {}
    for number, dtype, shape, strides, at in entry.meta["constants"]:
        sizes, steps, kind = tuple(map(int, shape)), tuple(map(int, strides)), DTYPES[dtype].numpy
        first = int(at) + lowest(sizes, steps) * kind.itemsize
        if min(sizes, default=0) < 0 or first < 0 or first + span(sizes, steps) * kind.itemsize > content.size:
            raise ParseError(f"constant {number} does not lie in the entry")
        found[int(number)] = array_at(address + int(at), sizes, steps, kind, content, readonly=True)
    return found


def _elements(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def _before(array: np.ndarray) -> int:
    """Bytes from the lowest element of an array to its first one."""
    return -lowest(array.shape, _elements(array)) * array.itemsize if array.size else 0


def _memory(array: np.ndarray) -> np.ndarray | None:
    """The bytes that an array lies in; None where they are many more than its own."""
    if not array.size:
        return np.zeros(0, np.uint8)
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    size = span(array.shape, _elements(array)) * array.itemsize
    if size > 2 * array.nbytes or any(stride % array.itemsize for stride in array.strides):
        return None
    first = array.__array_interface__["data"][0] - _before(array)
    return array_at(first, (size,), (1,), np.dtype(np.uint8), array)
