"""An object file → a shared object: what a linker does, for the little that kernels need.

    headers, symbols, relocations, constants | code, stubs | data, global offset table, dynamic section | blobs

Each part is mapped with rights of its own: to be read, run, written. The loader of the C library resolves what others
bring (the C library, libm). Blobs are large read-only arrays; they lie last and are referred to by whole addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.backends.cpu.elf_object import EXECUTE, WRITE, X86_64, ElfObject, Section, Symbol, read_object
from weft.backends.cpu.relocate import (
    ABSOLUTE,
    GLOBAL_DATA,
    RELATIVE,
    Image,
    is_absolute,
    is_call,
    relocate,
    stub,
    wants_got,
)
from weft.errors import CompilationError

NEEDED = ("libc.so.6", "libm.so.6", "libpthread.so.0")
_BLOB_ALIGNMENT = 64
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_STUB = 16


@dataclass
class _Layout:
    """Where things lie, as offsets from where the file is mapped; file offsets are the same."""

    sections: dict[int, int] = field(default_factory=dict[int, int])
    blobs: dict[str, int] = field(default_factory=dict[str, int])
    slots: dict[str, int] = field(default_factory=dict[str, int])
    stubs: dict[str, int] = field(default_factory=dict[str, int])


def link_shared(code: bytes, exports: Sequence[str], blobs: Mapping[str, bytes] | None = None, name: str = "") -> bytes:
    """The shared object of an object file. Only `exports` are seen from outside; `blobs` are symbols that it uses."""
    given = read_object(code)
    blobs = blobs or {}
    page = 0x1000 if given.machine == X86_64 else 0x10000
    defined = {s.name: s for s in given.symbols if s.name and s.section in given.sections}
    if missing := [each for each in exports if each not in defined]:
        raise CompilationError(f"the program has no function {missing[0]}", hint="report it with the program")
    uses = [
        (each, given.symbols[each.symbol], number)
        for number, section in given.sections.items()
        for each in section.relocations
    ]
    foreign = sorted({s.name for _, s, _ in uses if s.section is None and s.name not in blobs})
    in_table = sorted(
        {s.name for r, s, _ in uses if wants_got(given.machine, r.kind)}
        | {s.name for r, s, _ in uses if s.name in foreign and is_call(given.machine, r.kind)}
    )
    dynamic_count = sum(is_absolute(given.machine, r.kind) for r, _, _ in uses) + len(in_table)

    strings = _Strings()
    for each in (*foreign, *exports, *NEEDED, *([name] if name else [])):
        strings.add(each)
    symbols = 1 + len(foreign) + len(exports)
    at = _EHDR.size + 7 * _PHDR.size
    symtab, at = at, at + symbols * _SYM.size
    hashes, at = at, at + 4 * (2 + 1 + symbols)
    strtab, at = at, at + len(strings.data)
    rela = at = -(-at // 8) * 8
    at += dynamic_count * 24

    layout = _Layout()
    at = _place(layout, given, at, lambda s: not s.flags & (WRITE | EXECUTE))
    read_end = at
    text = at = -(-at // page) * page
    at = _place(layout, given, at, lambda s: bool(s.flags & EXECUTE))
    at = -(-at // _STUB) * _STUB
    for each in foreign:
        if any(s.name == each and is_call(given.machine, r.kind) for r, s, _ in uses):
            layout.stubs[each], at = at, at + _STUB
    text_end = at
    data = at = -(-at // page) * page
    at = _place(layout, given, at, lambda s: bool(s.flags & WRITE))
    at = -(-at // 8) * 8
    for each in in_table:
        layout.slots[each], at = at, at + 8
    dynamic = at
    at += 16 * (len(NEEDED) + bool(name) + 9)
    data_end = at
    blob_start = at = -(-at // page) * page
    for each, content in blobs.items():
        layout.blobs[each] = at = -(-at // _BLOB_ALIGNMENT) * _BLOB_ALIGNMENT
        at += len(content)
    blob_end = at

    # Sections that are 0 are written out: they are words of the thread pool.
    image = bytearray(blob_end)
    for number, start in layout.sections.items():
        content = given.sections[number].data
        image[start : start + len(content)] = content
    for each, start in layout.blobs.items():
        image[start : start + len(blobs[each])] = blobs[each]
    numbers = {each: place + 1 for place, each in enumerate((*foreign, *exports))}

    def address(symbol: str, section: int | None, value: int) -> int:
        if section is not None:
            return layout.sections[section] + value
        return layout.blobs[symbol]

    written: list[tuple[int, int, int]] = []
    for each in in_table:
        if each in foreign:
            written.append((layout.slots[each], numbers[each] << 32 | GLOBAL_DATA[given.machine], 0))
        elif each in blobs:
            written.append((layout.slots[each], RELATIVE[given.machine], layout.blobs[each]))
        else:
            symbol = defined[each]
            written.append((layout.slots[each], RELATIVE[given.machine], address(each, symbol.section, symbol.value)))
    for relocation, symbol, section in uses:
        place = layout.sections[section] + relocation.offset
        if is_absolute(given.machine, relocation.kind):
            if symbol.name in foreign:
                written.append((place, numbers[symbol.name] << 32 | ABSOLUTE[given.machine], relocation.addend))
            else:
                there = address(symbol.name, symbol.section, symbol.value) + relocation.addend
                written.append((place, RELATIVE[given.machine], there))
            continue
        if wants_got(given.machine, relocation.kind):
            target = layout.slots[symbol.name]
        elif symbol.name in layout.stubs:
            target = layout.stubs[symbol.name]
        elif symbol.name in foreign:
            raise CompilationError(f"a program reads {symbol.name} directly", hint="report it with the program")
        else:
            target = address(symbol.name, symbol.section, symbol.value)
        relocate(given.machine, image, place, relocation.kind, target, relocation.addend)
    for each, place in layout.stubs.items():
        image[place : place + _STUB] = stub(given.machine, place, layout.slots[each])

    _write_symbols(image, symtab, hashes, strings, foreign, exports, defined, layout)
    image[strtab : strtab + len(strings.data)] = strings.data
    for number, (place, info, addend) in enumerate(written):
        struct.pack_into("<QQq", image, rela + 24 * number, place, info, addend)
    entries = [(1, strings.at(each)) for each in NEEDED]
    entries += [(14, strings.at(name))] if name else []
    entries += [(4, hashes), (5, strtab), (6, symtab), (10, len(strings.data)), (11, _SYM.size)]
    entries += [(7, rela), (8, 24 * len(written)), (9, 24), (0, 0)]
    for number, entry in enumerate(entries):
        struct.pack_into("<QQ", image, dynamic + 16 * number, *entry)
    segments = [
        (1, 4, 0, read_end, page),
        (1, 5, text, text_end - text, page),
        (1, 6, data, data_end - data, page),
        *([(1, 4, blob_start, blob_end - blob_start, page)] if blobs else []),
        (2, 6, dynamic, 16 * len(entries), 8),
        (0x6474E551, 6, 0, 0, 16),  # the stack is not to be run
    ]
    for number, (kind, rights, start, size, alignment) in enumerate(segments):
        _PHDR.pack_into(
            image, _EHDR.size + number * _PHDR.size, kind, rights, start, start, start, size, size, alignment
        )
    described = [
        (".dynsym", 11, 2, symtab, symbols * _SYM.size, 3, 1, _SYM.size),
        (".hash", 5, 2, hashes, 4 * (3 + symbols), 1, 0, 4),
        (".dynstr", 3, 2, strtab, len(strings.data), 0, 0, 0),
        (".rela.dyn", 4, 2, rela, 24 * len(written), 1, 0, 24),
        (".text", 1, 6, text, text_end - text, 0, 0, 0),
        (".data", 1, 3, data, dynamic - data, 0, 0, 0),
        (".dynamic", 6, 3, dynamic, 16 * len(entries), 3, 0, 16),
    ]
    tables = _section_table(len(image), described)
    _EHDR.pack_into(
        image,
        0,
        b"\x7fELF\x02\x01\x01" + bytes(9),
        *(3, given.machine, 1, 0, _EHDR.size, len(image) + tables[1], 0, _EHDR.size),
        *(_PHDR.size, len(segments), _SHDR.size, len(described) + 2, len(described) + 1),
    )
    return bytes(image) + tables[0]


class _Strings:
    """A table of strings that end in a zero."""

    def __init__(self) -> None:
        self.data = b"\0"
        self._places: dict[str, int] = {}

    def add(self, text: str) -> None:
        if text not in self._places:
            self._places[text] = len(self.data)
            self.data += text.encode() + b"\0"

    def at(self, text: str) -> int:
        return self._places[text]


def _place(layout: _Layout, given: ElfObject, at: int, wanted: Callable[[Section], bool]) -> int:
    """Put the sections that are wanted behind each other; returns where they end."""
    for number, section in given.sections.items():
        if wanted(section) and section.size:
            at = -(-at // section.align) * section.align
            layout.sections[number] = at
            at += section.size
        elif wanted(section):
            layout.sections[number] = at
    return at


def _write_symbols(
    image: Image,
    symtab: int,
    hashes: int,
    strings: _Strings,
    foreign: Sequence[str],
    exports: Sequence[str],
    defined: Mapping[str, Symbol],
    layout: _Layout,
) -> None:
    """The symbols that the loader sees, in one bucket of its hash table."""
    names = (*foreign, *exports)
    for number, each in enumerate(names, 1):
        if each in foreign:
            fields = (strings.at(each), 0x10, 0, 0, 0, 0)
        else:
            symbol = defined[each]
            assert symbol.section is not None
            fields = (strings.at(each), 0x12, 0, 5, layout.sections[symbol.section] + symbol.value, 0)
        _SYM.pack_into(image, symtab + number * _SYM.size, *fields)
    chain = [0, *range(2, len(names) + 1), 0] if names else [0]
    struct.pack_into(f"<{3 + len(chain)}I", image, hashes, 1, len(names) + 1, min(1, len(names)), *chain)


def _section_table(start: int, described: Sequence[tuple[str, int, int, int, int, int, int, int]]) -> tuple[bytes, int]:
    """The names of sections and their headers, which linkers read, behind the image; and where the headers begin."""
    names = b"\0"
    rows = [_SHDR.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
    for name, kind, flags, at, size, link, info, entry in described:
        rows.append(_SHDR.pack(len(names), kind, flags, at, at, size, link, info, 8, entry))
        names += name.encode() + b"\0"
    own = len(names)
    names += b".shstrtab\0"
    rows.append(_SHDR.pack(own, 3, 0, 0, start, len(names), 0, 0, 1, 0))
    names += bytes(-(start + len(names)) % 8)
    return names + b"".join(rows), len(names)
