"""Where an element of a slot lies in it: lines of 128 bytes, whose pieces are mixed as the tensor cores expect."""

from __future__ import annotations

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.ir.rings import LINE, SlotType

CHUNK = 16
"""The bytes that the swizzle leaves together."""
_LINES = 8
"""Lines after which the swizzle begins again."""


def swizzled(b: Function, slot: SlotType, line: V, along: V) -> V:
    """The bytes from where a slot begins to an element, by its places across and along the slot's inner axis."""
    place = b.mul(along, i32(slot.dtype.bytes))
    block = b.mul(b.binary("lshr", place, i32(LINE.bit_length() - 1)), i32(slot.lines * LINE))
    # A line's pieces of 16 bytes are mixed by its number.
    mixed = b.binary("xor", place, b.mul(b.binary("and", line, i32(_LINES - 1)), i32(CHUNK)))
    return b.add(block, b.add(b.mul(line, i32(LINE)), b.binary("and", mixed, i32(LINE - 1))))
