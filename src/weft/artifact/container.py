"""The file itself: a zip archive without compression whose members are aligned, so that they are used where they lie.

A zip is listed and unpacked by tools that everyone has, and it can be mapped: weights are read from the page cache,
shared by all processes that load the file. There is one way only to write given members. `read_members` takes the
directory's word for names, sizes and checksums, works out what the whole file must look like, and compares: names that
occur twice, members that overlap, bytes that belong to none, comments, encryption and compression cannot be written so.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from weft.errors import CorruptArtifactError

ALIGNMENT = 64
MOST_MEMBERS = 4096
_MOST_DIRECTORY = 1 << 20
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,99}(/[a-z0-9_][a-z0-9_.-]{0,99}){0,3}")
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_FULL = 0xFFFFFFFF
_PADDING = 0xD935
_DATE = 0x21  # 1 January 1980: a file does not depend on when it is made


@dataclass(frozen=True)
class Member:
    """A file of the archive; `start` is where its bytes lie."""

    name: str
    size: int
    crc: int
    start: int = 0


@dataclass(frozen=True)
class _Frame:
    """What stands around the members: a header before each, and the directory behind them."""

    headers: list[tuple[int, bytes]]
    members: list[Member]
    directory: int
    tail: bytes


def _frame(given: Sequence[Member]) -> _Frame:
    """The one way to write members in this order."""
    headers: list[tuple[int, bytes]] = []
    placed: list[Member] = []
    central = b""
    at = 0
    for member in given:
        name = member.name.encode()
        large = member.size >= _FULL
        size = _FULL if large else member.size
        extra = struct.pack("<HHQQ", 1, 16, member.size, member.size) if large else b""
        unpadded = at + _LOCAL.size + len(name) + len(extra) + 4
        extra += struct.pack("<HH", _PADDING, -unpadded % ALIGNMENT) + bytes(-unpadded % ALIGNMENT)
        head = _LOCAL.pack(0x04034B50, 45, 0, 0, 0, _DATE, member.crc, size, size, len(name), len(extra)) + name + extra
        headers.append((at, head))
        wide = [member.size, member.size] if large else []
        wide += [at] if at >= _FULL else []
        extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        fields = (0x02014B50, 45, 45, 0, 0, 0, _DATE, member.crc, size, size, len(name), len(extra), 0, 0, 0, 0)
        central += _CENTRAL.pack(*fields, min(at, _FULL)) + name + extra
        placed.append(Member(member.name, member.size, member.crc, at + len(head)))
        at += len(head) + member.size
    count = len(given)
    tail = central
    # Always both endings: a reader finds the directory in one way, however large the file is.
    tail += _END64.pack(0x06064B50, 44, 45, 45, 0, 0, count, count, len(central), at)
    tail += _LOCATOR.pack(0x07064B50, 0, at + len(central), 1)
    tail += _END.pack(0x06054B50, 0, 0, count, count, len(central), min(at, _FULL), 0)
    return _Frame(headers, placed, at, tail)


def write_members(file: BinaryIO, contents: Sequence[tuple[str, Sequence[bytes | memoryview]]]) -> None:
    """Write members, each given as its name and the pieces of its content."""
    members: list[Member] = []
    for name, pieces in contents:
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        members.append(Member(name, sum(len(piece) for piece in pieces), crc))
    frame = _frame(members)
    for (_, header), (_, pieces) in zip(frame.headers, contents, strict=True):
        file.write(header)
        file.writelines(pieces)
    file.write(frame.tail)


def read_members(data: memoryview) -> dict[str, Member]:
    """The members of an archive; raises unless it is what `write_members` would have written."""
    directory, count, length = _directory(data)
    members = list(_listed(data[directory : directory + length], count))
    names = [member.name for member in members]
    if len(set(names)) != len(names):
        raise CorruptArtifactError("an artifact with two members of one name")
    frame = _frame(members)
    if (
        frame.directory != directory
        or len(data) != directory + len(frame.tail)
        or bytes(data[directory:]) != frame.tail
    ):
        raise CorruptArtifactError("an artifact whose directory does not fit its members", hint="fetch the file again")
    for at, header in frame.headers:
        if bytes(data[at : at + len(header)]) != header:
            raise CorruptArtifactError("an artifact whose members do not lie where its directory says")
    return {member.name: member for member in frame.members}


def _directory(data: memoryview) -> tuple[int, int, int]:
    """Where the directory is, how many members it lists, and its length."""
    ends = _END64.size + _LOCATOR.size + _END.size
    start = b"PK\x03\x04"
    if bytes(data[:4]) != start[: len(data)]:
        raise CorruptArtifactError("not an artifact of Weft's", hint="`weft compile` makes one of a model")
    if len(data) < ends:
        raise CorruptArtifactError("not an artifact of Weft's, or one that is cut off", hint="fetch the file again")
    fields = _END64.unpack_from(data, len(data) - ends)
    signature, count, length, at = fields[0], fields[7], fields[8], fields[9]
    if signature != 0x06064B50 or at + length + ends != len(data):
        raise CorruptArtifactError("an artifact without its directory: it is cut off", hint="fetch the file again")
    if not 0 < count <= MOST_MEMBERS or length > _MOST_DIRECTORY:
        raise CorruptArtifactError(f"an artifact with {count} members, of which there may be {MOST_MEMBERS}")
    return at, count, length


def _listed(directory: memoryview, count: int) -> Iterable[Member]:
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(directory):
            raise CorruptArtifactError("an artifact whose directory is cut off", hint="fetch the file again")
        fields = _CENTRAL.unpack_from(directory, at)
        crc, size, name_length, extra_length = fields[7], fields[9], fields[10], fields[11]
        at += _CENTRAL.size
        name = bytes(directory[at : at + name_length]).decode("ascii", "replace")
        extra = directory[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length
        if size == _FULL:
            if len(extra) < 12:
                raise CorruptArtifactError("an artifact with a large member whose size is missing")
            (size,) = struct.unpack_from("<Q", extra, 4)
        if not _NAME.fullmatch(name):
            raise CorruptArtifactError(f"an artifact with a member called {name[:80]!r}")
        yield Member(name, size, crc)
