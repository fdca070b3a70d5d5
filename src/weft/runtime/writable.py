"""Whether memory may be written to: asked of the system, for memory that others have made (files that are mapped)."""

from __future__ import annotations

import ctypes
import mmap
from functools import lru_cache
from pathlib import Path
from typing import Any

_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE: pages are made ready to be written to, and keep what they hold; else it is refused."""
_MAPS = Path("/proc/self/maps")


def is_writable(start: int, size: int) -> bool:
    """Whether the page at an address may be written to; nothing is written. True where the system does not tell."""
    if not size or not start:
        return True
    advise = _advise()
    return _populate(advise, start) if advise is not None else _mapped_writable(start)


@lru_cache(maxsize=1)
def _advise() -> Any:
    """The system's function, where it knows this advice: one that does not refuses it for any memory."""
    try:
        function: Any = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    probe = ctypes.create_string_buffer(1)
    return function if _populate(function, ctypes.addressof(probe)) else None


def _populate(advise: Any, start: int) -> bool:
    return advise(start & -mmap.PAGESIZE, mmap.PAGESIZE, _POPULATE_WRITE) == 0


def _mapped_writable(start: int) -> bool:
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return True
    for line in lines:
        places, rights, *_ = line.split()
        first, last = (int(place, 16) for place in places.split("-"))
        if first <= start < last:
            return "w" in rights
    return True
