"""How arrays lie in memory, by shape and strides; strides count elements."""

from __future__ import annotations

from collections.abc import Sequence


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def lies_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one beside the other, none twice."""
    lengths = sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1)
    expected = 1
    for stride, size in lengths:
        if stride != expected:
            return False
        expected *= size
    return True


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense array, row by row."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
