"""Arithmetic on sizes for host and kernel alike, and the allocator, which a CPU has no use for."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from weft.frontends.triton.compiler.constexpr_function import constexpr_function


@constexpr_function
def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return (x + y - 1) // y


@constexpr_function
def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is not less than n."""
    return 1 << max(n - 1, 0).bit_length() if n > 0 else 0


@constexpr_function
def log2(i: int) -> int:
    """The logarithm of a power of 2; of other numbers, rounded down."""
    return max(i, 1).bit_length() - 1


@constexpr_function
def is_power_of_two(i: int) -> bool:
    """Is it one?"""
    return i > 0 and not i & (i - 1)


_allocator: ContextVar[Callable[..., Any] | None] = ContextVar("_allocator", default=None)


def set_allocator(allocator: Callable[[int, int, int | None], Any]) -> None:
    """Say how a kernel gets memory beside its arguments. No kernel on a CPU asks for any."""
    _allocator.set(allocator)


class NullAllocator:
    """The allocator where none was set."""

    def __call__(self, size: int, alignment: int, stream: int | None) -> Any:
        from weft.frontends.triton.errors import LaunchError

        raise LaunchError("no allocator was set", hint="call triton.set_allocator")
