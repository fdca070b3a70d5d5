"""How arrays lie in memory, by shape and strides; strides count elements."""

from __future__ import annotations

from collections.abc import Sequence


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the lowest and the highest in memory, both included."""
    return 0 if 0 in shape else 1 + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))


def lowest(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Where the lowest element in memory lies, counted from the first: before it, where strides are negative."""
    return 0 if 0 in shape else sum((size - 1) * min(stride, 0) for size, stride in zip(shape, strides, strict=True))


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
