"""Large pages for large blocks of memory, where the system offers them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import lru_cache
from typing import Any

LARGE = 1 << 22
"""Bytes from which memory is worth asking for: smaller blocks an allocator hands out again by itself."""


def use_huge_pages(address: int, size: int) -> None:
    """Ask the system for large pages where it offers them: a block then costs a few faults instead of thousands."""
    advise = _madvise()
    if advise is not None and size >= LARGE:
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


@lru_cache(maxsize=1)
def _madvise() -> Callable[[int, int, int], int] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function: Any = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
