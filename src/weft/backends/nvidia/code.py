"""Device code as plain data: what the compiler hands to the runtime, and what the cache keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.ir.expr import Size


@dataclass(frozen=True)
class TensorMap:
    """A tensor that the copy engine reads boxes of, into shared memory whose lines of 128 bytes are swizzled.

    Sizes and strides are over the kernel's symbols and its scalars (`argument_name`), the innermost first, in elements;
    that one has stride 1.
    """

    argument: int
    """Which of the kernel's pointers is its memory."""
    dtype: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...]


def argument_name(number: int) -> str:
    """The symbol that stands for a scalar that a kernel takes."""
    return f"argument{number}"


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched."""

    threads: int
    """Of a block."""
    shared: int
    """Dynamic shared memory in bytes."""
    cluster: int = 1
    """Blocks of a cluster."""
    blocks_per_program: int = 1
    """A cluster shares a program: the grid has `programs * blocks_per_program` blocks."""
    persistent: bool = False
    """As many blocks as fit on the device at once, which walk the programs."""
    maps: tuple[TensorMap, ...] = ()
    """Parameters of 128 bytes each, after all others."""
    programmatic: bool = False
    """The kernel waits for what it depends on by itself (`griddepcontrol.wait`): it may start before that ends."""
    asked: tuple[int, ...] = ()
    """Which of its pointers are to memory that it reads before that."""
    written: tuple[int, ...] = ()
    """Which are to memory that it may write."""


@dataclass(frozen=True)
class DeviceCode:
    """One PTX module, and how each of its kernels is launched, by name."""

    arch: str
    ptx: str
    launches: Mapping[str, Launch]
