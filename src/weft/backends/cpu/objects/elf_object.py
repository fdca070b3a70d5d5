"""Object files as LLVM writes them, read: the sections, symbols and relocations that `link_shared` puts together."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from weft.errors import CompilationError

X86_64, AARCH64 = 62, 183
ALLOC, WRITE, EXECUTE = 2, 1, 4
_RELA, _SYMTAB, _NOBITS = 4, 2, 8
_LEFT_OUT = (".eh_frame", ".note", ".comment", ".llvm")
"""Sections that a program runs without: nothing unwinds through kernels."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


@dataclass(frozen=True)
class Relocation:
    """A place in a section that holds the address of a symbol, in the form that `kind` says."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Section:
    """Bytes that a program has in memory; those of `size` beyond `data` are 0."""

    name: str
    flags: int
    align: int
    size: int
    data: bytes
    relocations: list[Relocation] = field(default_factory=list[Relocation])


@dataclass(frozen=True)
class Symbol:
    """A name for a place: `section` is None for what others bring."""

    name: str
    section: int | None
    value: int


@dataclass(frozen=True)
class ElfObject:
    """An object file: its sections by their numbers, and its symbols in order."""

    machine: int
    sections: dict[int, Section]
    symbols: list[Symbol]


def read_object(data: bytes) -> ElfObject:
    """The object file that LLVM made for an x86-64 or AArch64 processor."""
    fields: tuple[int, ...] = _HEADER.unpack_from(data)
    machine, at, count, names = fields[2], fields[6], fields[12], fields[13]
    if data[:6] != b"\x7fELF\x02\x01" or machine not in (X86_64, AARCH64):
        raise CompilationError("an object file that is not of a 64-bit x86 or ARM", hint="name another target")
    headers: list[tuple[int, ...]] = [
        _SECTION.unpack_from(data, at + number * _SECTION.size) for number in range(count)
    ]
    strings = _content(data, headers[names])
    sections: dict[int, Section] = {}
    for number, header in enumerate(headers):
        name = _text(strings, header[0])
        if header[2] & ALLOC and not name.startswith(_LEFT_OUT):
            sections[number] = Section(name, header[2], max(header[8], 1), header[5], _content(data, header))
    symbols: list[Symbol] = []
    for header in headers:
        if header[1] == _SYMTAB:
            symbols = _symbols(_content(data, header), _content(data, headers[header[6]]))
    for header in headers:
        if header[1] == _RELA and header[7] in sections:
            for offset, info, addend in _RELOCATION.iter_unpack(_content(data, header)):
                found = Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)
                sections[header[7]].relocations.append(found)
    return ElfObject(machine, sections, symbols)


def _content(data: bytes, header: tuple[int, ...]) -> bytes:
    return b"" if header[1] == _NOBITS else data[header[4] : header[4] + header[5]]


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()


def _symbols(table: bytes, strings: bytes) -> list[Symbol]:
    found: list[Symbol] = []
    for name, _, _, section, value, _ in _SYMBOL.iter_unpack(table):
        inside = section if 0 < section < 0xFF00 else None
        found.append(Symbol(_text(strings, name), inside, value))
    return found
