"""An object file → a shared object: what a linker does, for the little that kernels need.

    headers, symbols, relocations, constants | code, stubs | data, global offset table, dynamic section | blobs

Each part is mapped with rights of its own: to be read, run, written. The loader of the C library resolves what others
bring (the C library, libm). Blobs are large read-only arrays; they lie last and are referred to by whole addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.backends.cpu.objects.elf_object import EXECUTE, WRITE, X86_64, ElfObject, Section, Symbol, read_object
from weft.backends.cpu.objects.relocate import (
    ABSOLUTE,
    GLOBAL_DATA,
    RELATIVE,
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
_SEGMENTS, _STACK = 6, 0x6474E551
_TEXT = 5
"""The number of the section with code, which symbols name."""


def link_shared(code: bytes, exports: Sequence[str], blobs: Mapping[str, bytes] | None = None, name: str = "") -> bytes:
    """The shared object of an object file. Only `exports` are seen from outside; `blobs` are symbols that it uses."""
    linker = _Linker(read_object(code), tuple(exports), blobs or {}, name)
    linker.lay_out()
    linker.fill()
    linker.relocate()
    linker.write_tables()
    return linker.finished()


@dataclass
class _Linker:
    """Addresses are offsets from where the file is mapped, and offsets in the file are the same."""

    given: ElfObject
    exports: tuple[str, ...]
    blobs: Mapping[str, bytes]
    name: str
    sections: dict[int, int] = field(default_factory=dict[int, int])
    """Where each section begins; the same of blobs, slots of the global offset table, and stubs, by symbol."""
    places: dict[str, int] = field(default_factory=dict[str, int])
    slots: dict[str, int] = field(default_factory=dict[str, int])
    stubs: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Where each part begins and ends."""
    left: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Relocations that are left to the loader: place, kind and symbol, addend."""

    def __post_init__(self) -> None:
        given, self.machine = self.given, self.given.machine
        self.page = 0x1000 if self.machine == X86_64 else 0x10000
        self.defined = {s.name: s for s in given.symbols if s.name and s.section in given.sections}
        if missing := [each for each in self.exports if each not in self.defined]:
            raise CompilationError(f"the program has no function {missing[0]}", hint="report it with the program")
        self.uses = [
            (number, each, given.symbols[each.symbol])
            for number, section in given.sections.items()
            for each in section.relocations
        ]
        self.foreign = sorted({s.name for _, _, s in self.uses if s.section is None and s.name not in self.blobs})
        self.called = {s.name for _, r, s in self.uses if s.name in self.foreign and is_call(self.machine, r.kind)}
        read = {s.name for _, r, s in self.uses if wants_got(self.machine, r.kind)}
        self.in_table = sorted(read | self.called)
        self.seen = (*self.foreign, *self.exports)
        self.strings = _Strings((*self.seen, *NEEDED, *([self.name] if self.name else [])))
        self.image = bytearray()

    def lay_out(self) -> None:
        """Decide where everything lies."""
        count = 1 + len(self.seen)
        left = sum(is_absolute(self.machine, r.kind) for _, r, _ in self.uses) + len(self.in_table)
        at = self._part("symbols", _EHDR.size + _SEGMENTS * _PHDR.size, count * _SYM.size)
        at = self._part("hashes", at, 4 * (3 + count))
        at = self._part("strings", at, len(self.strings.data))
        at = self._part("relocations", -(-at // 8) * 8, 24 * left)
        at = self._place(at, lambda section: not section.flags & (WRITE | EXECUTE))
        self.parts["read"] = 0, at
        start = at = self._next_page(at)
        at = self._place(at, lambda section: bool(section.flags & EXECUTE))
        for each in sorted(self.called):
            self.stubs[each] = at = -(-at // _STUB) * _STUB
            at += _STUB
        self.parts["text"] = start, at
        start = at = self._next_page(at)
        at = self._place(at, lambda section: bool(section.flags & WRITE))
        for each in self.in_table:
            self.slots[each] = at = -(-at // 8) * 8
            at += 8
        at = self._part("dynamic", -(-at // 8) * 8, 16 * (len(NEEDED) + bool(self.name) + 9))
        self.parts["data"] = start, at
        start = at = self._next_page(at)
        for each, content in self.blobs.items():
            self.places[each] = at = -(-at // _BLOB_ALIGNMENT) * _BLOB_ALIGNMENT
            at += len(content)
        self.parts["blobs"] = start, at

    def _next_page(self, at: int) -> int:
        return -(-at // self.page) * self.page

    def _part(self, name: str, at: int, size: int) -> int:
        self.parts[name] = at, at + size
        return at + size

    def _place(self, at: int, wanted: Callable[[Section], bool]) -> int:
        """Put the sections that are wanted behind each other; returns where they end."""
        for number, section in self.given.sections.items():
            if wanted(section):
                at = -(-at // section.align) * section.align
                self.sections[number] = at
                at += section.size
        return at

    def fill(self) -> None:
        """Copy sections and blobs. Sections that are 0 are written out: they are words of the thread pool."""
        self.image = bytearray(self.parts["blobs"][1])
        for number, start in self.sections.items():
            content = self.given.sections[number].data
            self.image[start : start + len(content)] = content
        for each, start in self.places.items():
            self.image[start : start + len(self.blobs[each])] = self.blobs[each]
        for each, start in self.stubs.items():
            self.image[start : start + _STUB] = stub(self.machine, start, self.slots[each])

    def _address(self, symbol: Symbol) -> int:
        return self.places[symbol.name] if symbol.section is None else self.sections[symbol.section] + symbol.value

    def relocate(self) -> None:
        """Write addresses into code and data, and leave to the loader what only it knows."""
        for each in self.in_table:
            self._leave(self.slots[each], self.defined.get(each) or Symbol(each, None, 0), 0, GLOBAL_DATA)
        for number, relocation, symbol in self.uses:
            place = self.sections[number] + relocation.offset
            if is_absolute(self.machine, relocation.kind):
                self._leave(place, symbol, relocation.addend, ABSOLUTE)
                continue
            if wants_got(self.machine, relocation.kind):
                target = self.slots[symbol.name]
            elif symbol.name in self.stubs:
                target = self.stubs[symbol.name]
            elif symbol.name in self.foreign:
                raise CompilationError(f"a program reads {symbol.name} directly", hint="report it with the program")
            else:
                target = self._address(symbol)
            relocate(self.machine, self.image, place, relocation.kind, target, relocation.addend)

    def _leave(self, place: int, symbol: Symbol, addend: int, kinds: Mapping[int, int]) -> None:
        """Let the loader write the address of a symbol to a place: another library's, or where this one is mapped."""
        if symbol.name in self.foreign:
            number = self.seen.index(symbol.name) + 1
            self.left.append((place, number << 32 | kinds[self.machine], addend))
        else:
            self.left.append((place, RELATIVE[self.machine], self._address(symbol) + addend))

    def write_tables(self) -> None:
        """What the loader reads: symbols in one bucket of a hash table, strings, relocations, and where they are."""
        symbols, hashes, strings, relocations, dynamic = (
            self.parts[each][0] for each in ("symbols", "hashes", "strings", "relocations", "dynamic")
        )
        for number, each in enumerate(self.seen, 1):
            found = self.defined[each] if each in self.exports else None
            about = (0x10, 0, 0, 0, 0) if found is None else (0x12, 0, _TEXT, self._address(found), 0)
            _SYM.pack_into(self.image, symbols + number * _SYM.size, self.strings.at(each), *about)
        count = len(self.seen)
        chain = [0, *range(2, count + 1), 0] if count else [0]
        struct.pack_into(f"<{3 + len(chain)}I", self.image, hashes, 1, count + 1, min(1, count), *chain)
        self.image[strings : strings + len(self.strings.data)] = self.strings.data
        for number, entry in enumerate(self.left):
            struct.pack_into("<QQq", self.image, relocations + 24 * number, *entry)
        entries = [(1, self.strings.at(each)) for each in NEEDED]
        entries += [(14, self.strings.at(self.name))] if self.name else []
        entries += [(4, hashes), (5, strings), (6, symbols), (10, len(self.strings.data)), (11, _SYM.size)]
        entries += [(7, relocations), (8, 24 * len(self.left)), (9, 24), (0, 0)]
        for number, entry in enumerate(entries):
            struct.pack_into("<QQ", self.image, dynamic + 16 * number, *entry)

    def finished(self) -> bytes:
        """The file, with the headers that say how it is mapped, and those of sections, which linkers read."""
        mapped = [("read", 4), ("text", 5), ("data", 6), *([("blobs", 4)] if self.blobs else [])]
        segments = [(1, rights, *self.parts[part], self.page) for part, rights in mapped]
        segments += [(2, 6, *self.parts["dynamic"], 8), (_STACK, 6, 0, 0, 16)]
        for number, (kind, rights, start, end, alignment) in enumerate(segments):
            fields = (kind, rights, start, start, start, end - start, end - start, alignment)
            _PHDR.pack_into(self.image, _EHDR.size + number * _PHDR.size, *fields)
        data = self.parts["data"][0], self.parts["dynamic"][0]
        table, start = _section_table(
            len(self.image),
            [
                (".dynsym", 11, 2, *self.parts["symbols"], 3, 1, _SYM.size),
                (".hash", 5, 2, *self.parts["hashes"], 1, 0, 4),
                (".dynstr", 3, 2, *self.parts["strings"], 0, 0, 0),
                (".rela.dyn", 4, 2, *self.parts["relocations"], 1, 0, 24),
                (".text", 1, 6, *self.parts["text"], 0, 0, 0),
                (".data", 1, 3, *data, 0, 0, 0),
                (".dynamic", 6, 3, *self.parts["dynamic"], 3, 0, 16),
            ],
        )
        head = b"\x7fELF\x02\x01\x01" + bytes(9)
        about = (3, self.machine, 1, 0, _EHDR.size, len(self.image) + start, 0, _EHDR.size)
        _EHDR.pack_into(self.image, 0, head, *about, _PHDR.size, len(segments), _SHDR.size, 9, 8)
        return bytes(self.image) + table


class _Strings:
    """A table of strings that end in a zero."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.data = b"\0"
        self._places: dict[str, int] = {}
        for text in dict.fromkeys(texts):
            self._places[text] = len(self.data)
            self.data += text.encode() + b"\0"

    def at(self, text: str) -> int:
        return self._places[text]


def _section_table(start: int, described: Sequence[tuple[str, int, int, int, int, int, int, int]]) -> tuple[bytes, int]:
    """The names of sections and their headers, which linkers read, behind the image; and where the headers begin."""
    names = b"\0"
    rows = [_SHDR.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
    for name, kind, flags, at, end, link, info, entry in described:
        rows.append(_SHDR.pack(len(names), kind, flags, at, at, end - at, link, info, 8, entry))
        names += name.encode() + b"\0"
    own = len(names)
    names += b".shstrtab\0"
    rows.append(_SHDR.pack(own, 3, 0, 0, start, len(names), 0, 0, 1, 0))
    names += bytes(-(start + len(names)) % 8)
    return names + b"".join(rows), len(names)
