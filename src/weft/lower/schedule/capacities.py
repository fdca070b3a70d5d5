"""How much of a run a GPU's tile holds: powers of two, or all of it."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.expr import Size, product

ACCESS = 32
"""Neighbours that a memory access should bring at least."""
_UNKNOWN = 1 << 20


def estimated(size: Size) -> int:
    """A size; what is not known is long."""
    return size if isinstance(size, int) else _UNKNOWN


def known_product(sizes: Iterable[Size]) -> int | None:
    total = product(sizes)
    return total if isinstance(total, int) else None


def power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def fitting_capacity(size: Size, most: int) -> int:
    """A capacity of at most `most` (a power of two below it): all of a run, or of its blocks the largest that waste
    little."""
    limit = power_below(most)
    if not isinstance(size, int):
        return limit
    if size <= most:
        return max(size, 1)
    capacity = limit
    while capacity > ACCESS and -(-size // capacity) * capacity * 15 > size * 16:
        capacity //= 2
    return capacity if -(-size // capacity) * capacity * 8 <= size * 9 else limit
