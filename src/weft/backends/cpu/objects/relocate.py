"""Relocations of x86-64 and AArch64: addresses written into code and data, once it is known where everything lies."""

from __future__ import annotations

import struct
from typing import TypeAlias

from weft.backends.cpu.objects.elf_object import X86_64
from weft.errors import CompilationError

Image: TypeAlias = bytearray

# The relocations that the loader carries out, by machine: an own address, another library's symbol, both as 64 bits.
RELATIVE = {X86_64: 8, 183: 1027}
GLOBAL_DATA = {X86_64: 6, 183: 1025}
ABSOLUTE = {X86_64: 1, 183: 257}

_X86_PC32 = frozenset([2, 4])
_X86_GOT = frozenset([9, 41, 42])
_X86_CALL = 4
_ARM_BRANCH = frozenset([282, 283])
_ARM_GOT = frozenset([311, 312])
_ARM_PAGE = frozenset([275, 311])
_ARM_LOW = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}
"""Relocations of the low 12 bits of an address, and by how many bits the instruction scales them."""


def is_absolute(machine: int, kind: int) -> bool:
    """Whether the place holds a whole address, which the loader has to fill in."""
    return kind == ABSOLUTE[machine]


def wants_got(machine: int, kind: int) -> bool:
    """Whether the address is read from the global offset table."""
    return kind in (_X86_GOT if machine == X86_64 else _ARM_GOT)


def is_call(machine: int, kind: int) -> bool:
    """Whether a stub may stand in for the symbol."""
    return kind == _X86_CALL if machine == X86_64 else kind in _ARM_BRANCH


def relocate(machine: int, image: Image, place: int, kind: int, target: int, addend: int) -> None:
    """Write the address `target`, or the way to it from the address `place`; both are offsets into the image."""
    if machine == X86_64:
        _relocate_x86(image, place, kind, target + addend)
    else:
        _relocate_arm(image, place, kind, target + addend)


def _relocate_x86(image: Image, place: int, kind: int, value: int) -> None:
    if kind in _X86_PC32 or kind in _X86_GOT:
        struct.pack_into("<i", image, place, _fitting(value - place, 32))
    elif kind == 24:
        struct.pack_into("<q", image, place, value - place)
    else:
        raise _unknown(kind)


def _relocate_arm(image: Image, place: int, kind: int, value: int) -> None:
    (word,) = struct.unpack_from("<I", image, place)
    if kind in _ARM_BRANCH:
        word |= (_fitting(value - place, 28) >> 2) & 0x3FFFFFF
    elif kind in _ARM_PAGE:
        pages = _fitting((value >> 12) - (place >> 12), 21)
        word |= (pages & 3) << 29 | ((pages >> 2) & 0x7FFFF) << 5
    elif kind in _ARM_LOW:
        word |= ((value & 0xFFF) >> _ARM_LOW[kind]) << 10
    elif kind == 261:
        word = _fitting(value - place, 32) & 0xFFFFFFFF
    elif kind == 260:
        struct.pack_into("<q", image, place, value - place)
        return
    else:
        raise _unknown(kind)
    struct.pack_into("<I", image, place, word)


def stub(machine: int, place: int, slot: int) -> bytes:
    """Code at an address that jumps to where a slot of the global offset table says: 16 bytes."""
    if machine == X86_64:
        return b"\xff\x25" + struct.pack("<i", _fitting(slot - place - 6, 32)) + b"\xcc" * 10
    pages = _fitting((slot >> 12) - (place >> 12), 21)
    adrp = 0x90000010 | (pages & 3) << 29 | ((pages >> 2) & 0x7FFFF) << 5
    load = 0xF9400211 | ((slot & 0xFFF) >> 3) << 10
    return struct.pack("<4I", adrp, load, 0xD61F0220, 0xD503201F)


def _fitting(value: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise CompilationError("a program's code is too large to be linked", hint="split the model")
    return value


def _unknown(kind: int) -> CompilationError:
    return CompilationError(f"LLVM made a relocation of an unknown kind, {kind}", hint="report it with the program")
