"""Programs that are captured one after the other: the first kernel of one may start before the last of the other ends.

A program does not know what is ahead of it on its stream. Where that is captured as a graph, the driver does: if it is
the last kernel of another program, which does not write what this one reads before it has ended, it is as good as a
kernel of the same program (`early_start`). Anything else, and all that is not captured, is waited for by the driver.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.backends.nvidia.driver.libcuda import Driver
from weft.forks import cached_property

_QUERY, _ACTIVE = "cuStreamGetCaptureInfo_v3", 1
_WORD = 8
Span: TypeAlias = tuple[int, int, int]
"""A place in the table, and where memory begins and ends, in bytes from what the table has there."""


@dataclass(frozen=True)
class Early:
    """A tape whose first kernel starts before the one ahead has ended.

    It tells what that kernel then reads, and what the tape's kernels write.
    """

    words: np.ndarray
    asked: tuple[Span, ...]
    written: tuple[Span, ...]

    @cached_property
    def address(self) -> int:
        return self.words.ctypes.data


@dataclass(frozen=True)
class _Kernel:
    """A captured kernel, and the memory that it and those before it in its tape write."""

    node: tuple[int, int]
    written: tuple[range, ...]


class Captures:
    """The last kernel that was captured of those that others may follow early."""

    def __init__(self, driver: Driver) -> None:
        self._query = getattr(driver.library, _QUERY, None)
        self._last: _Kernel | None = None

    def node(self, stream: int) -> tuple[int, int] | None:
        """The one node that a captured stream waits for, with the number of the capture."""
        if self._query is None:
            return None
        status, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
        nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        found = (*map(ctypes.byref, (status, number)), None, *map(ctypes.byref, (nodes, edges, count)))
        if self._query(ctypes.c_void_p(stream), *found) or status.value != _ACTIVE or count.value != 1:
            return None
        return number.value, nodes[0] or 0

    def follows(self, early: Early, table: int, stream: int) -> bool:
        """Whether what is ahead is known, and writes nothing of what is read before it has ended."""
        last = self._last
        if last is None or self.node(stream) != last.node:
            return False
        asked = _ranges(early.asked, table)
        return not any(one.start < other.stop and other.start < one.stop for one in asked for other in last.written)

    def note(self, early: Early, table: int, stream: int) -> None:
        """Remember the last kernel of a tape that was launched, if it was captured."""
        node = self.node(stream)
        self._last = None if node is None else _Kernel(node, _ranges(early.written, table))


def _ranges(spans: tuple[Span, ...], table: int) -> tuple[range, ...]:
    found = [(ctypes.c_int64.from_address(table + _WORD * place).value, *ends) for place, *ends in spans]
    return tuple(range(address + start, address + stop) for address, start, stop in found)
