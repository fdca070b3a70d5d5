"""Arguments that are written over must not lie where other arguments are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.runtime.array_adapter import ArrayAdapter, ArrayT
from weft.runtime.strides import row_major


def kept_apart(arrays: ArrayAdapter[ArrayT], given: Sequence[ArrayT], written: Iterable[int]) -> list[ArrayT]:
    """The arrays of a call, with copies of those to be written over that may share memory with another."""
    apart = list(given)
    for place in written:
        first, end = _reach(arrays, apart[place])
        others = (_reach(arrays, array) for number, array in enumerate(apart) if number != place)
        if any(first < to and start < end for start, to in others):
            apart[place] = arrays.copied(apart[place], row_major(arrays.shape(apart[place])))
    return apart


def _reach(arrays: ArrayAdapter[ArrayT], array: ArrayT) -> tuple[int, int]:
    """The addresses of an array's first byte, and of the one behind its last."""
    address, size = arrays.address(array), arrays.itemsize(array)
    if not arrays.count(array):
        return address, address
    steps = [(n - 1) * stride for n, stride in zip(arrays.shape(array), arrays.strides(array), strict=True)]
    before, behind = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    return address + before * size, address + (behind + 1) * size
