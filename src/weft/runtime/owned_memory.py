"""Memory that was filled once and that nobody writes to later: constants in it need no copies of their own."""

from __future__ import annotations

import ctypes
import mmap
from typing import Self

from weft.runtime.huge_pages import use_huge_pages


class OwnedMemory(mmap.mmap):
    """A block of memory of the process's own. Whoever makes one fills it, and hands out arrays that are read only."""

    @classmethod
    def of(cls, size: int) -> Self:
        """A block of so many bytes, in large pages where there are such."""
        block = cls(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        use_huge_pages(ctypes.addressof(ctypes.c_char.from_buffer(block)), size)
        return block
