"""One entry of the disk cache: a file whose every byte is checked when it is read.

    magic, format version, header length, sha256 of the header | header (JSON) | meta (JSON) | blob | blob ...

The header holds the key, the Weft version that wrote the entry, and the size and sha256 of every section after it.
Large data (`paged_data`) comes first of the blobs, at the border of a page, and is mapped. Its digest is a quick one,
of sums of its pages, which tell of accidents.
"""

import errno
import hashlib
import json
import logging
import mmap
import os
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from weft.runtime.paged_data import PAGE, PagedData, digest_of_pages, is_paged

MAGIC = b"\x89WEFT\r\n\x00"
FORMAT = 1
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""The bits of a mode that let others than the owner choose what is read."""

_log = logging.getLogger("weft.cache")
_PREFIX = struct.Struct(">8sIQ32s")


@dataclass(frozen=True)
class CacheEntry:
    """What was stored under a key; `meta` is as JSON reads it back (tuples come back as lists)."""

    key: str
    meta: dict[str, Any]
    blobs: dict[str, bytes]
    pages: dict[str, memoryview] = field(default_factory=dict[str, memoryview])
    """Blobs that were stored as `PagedData`, mapped for reading."""


@dataclass(frozen=True)
class Header:
    created_by: str
    sections: list[tuple[str, int, str]]  # name, size, digest; the meta has no name, the blobs do


class BadContentError(Exception):
    """The file is there but is not an entry that this cache wrote for this key."""


def weft_version() -> str:
    # importlib.metadata would take 50 ms to import, more than a warm start should.
    return str(getattr(sys.modules["weft"], "__version__", "unknown"))


def encode_entry(key: str, meta: Mapping[str, Any], blobs: Mapping[str, bytes | PagedData]) -> list[bytes | memoryview]:
    if "" in blobs:
        raise ValueError("a blob needs a name")
    pages = {name: each for name, each in blobs.items() if isinstance(each, PagedData)}
    rest = {name: each for name, each in blobs.items() if not isinstance(each, PagedData)}
    text = json.dumps(dict(meta), allow_nan=False).encode()
    sections = [
        ("", len(text), hashlib.sha256(text).hexdigest()),
        *((name, len(each), each.digest()) for name, each in pages.items()),
        *((name, len(each), hashlib.sha256(each).hexdigest()) for name, each in rest.items()),
    ]
    header = json.dumps({"key": key, "created_by": weft_version(), "sections": sections}).encode()
    if pages:
        header += b" " * (-(_PREFIX.size + len(header) + len(text)) % PAGE)
    prefix = _PREFIX.pack(MAGIC, FORMAT, len(header), hashlib.sha256(header).digest())
    return [prefix, header, text, *(piece for each in pages.values() for piece in each.pieces()), *rest.values()]


def write_entry(path: Path, sections: Sequence[bytes | memoryview], *, durable: bool = True) -> None:
    """Write a file that appears whole; one that is not `durable` may be found damaged after a power cut."""
    temp = path.parent / f".{os.getpid()}-{os.urandom(8).hex()}.tmp"
    try:
        with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.writelines(sections)
            file.flush()
            if durable:
                os.fsync(file.fileno())  # else a power cut may leave the name without the bytes
        os.replace(temp, path)
    except BaseException:
        with suppress(OSError):  # what is left over goes with the stale ones
            temp.unlink()
        raise


def load_entry(path: Path, key: str, touch: bool = True) -> tuple[CacheEntry, str]:
    """The entry and the version that wrote it, every byte checked; by default marks the entry as used now."""
    with open_entry(path) as file:
        header = read_header(file, key)
        contents, pages = _sections(file, header)
        if touch:
            try:
                os.utime(file.fileno())
            except OSError as error:  # a read-only cache is still good to read
                _log.debug("cannot mark %s as used: %s", path, error)
    for name, _, digest in header.sections:
        found = digest_of_pages(pages[name]) if name in pages else hashlib.sha256(contents[name]).hexdigest()
        if found != digest:
            raise BadContentError(f"{f'blob {name!r}' if name else 'meta'} does not match its digest")
    try:
        meta: dict[str, Any] = dict(**json.loads(contents.pop("")))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadContentError(f"meta is not a JSON object: {error!r}") from error
    return CacheEntry(key, meta, contents, pages), header.created_by


def _sections(file: BinaryIO, header: Header) -> tuple[dict[str, bytes], dict[str, memoryview]]:
    """What is in a file: sections that are read, and those that are mapped."""
    contents: dict[str, bytes] = {}
    pages: dict[str, memoryview] = {}
    mapped: memoryview | None = None
    for name, size, digest in header.sections:
        if not (is_paged(digest) and name and size):
            contents[name] = file.read(size)
            continue
        if mapped is None:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        at = file.tell()
        if at % PAGE or size % PAGE:
            raise BadContentError(f"blob {name!r} does not lie at the border of a page")
        pages[name] = mapped[at : at + size]
        file.seek(at + size)
    return contents, pages


def open_entry(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a named pipe would wait for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return open(path, "rb", opener=lambda name, _: os.open(name, flags))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise BadContentError("not a regular file") from error
        raise


def read_header(file: BinaryIO, key: str) -> Header:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise BadContentError("not a regular file")
    if status.st_uid != os.geteuid():
        raise BadContentError(f"owned by user {status.st_uid}")
    if status.st_mode & OTHERS_WRITE:
        raise BadContentError(f"others than its owner can write to it (mode {stat.S_IMODE(status.st_mode):o})")
    if len(prefix := file.read(_PREFIX.size)) < _PREFIX.size:
        raise BadContentError("truncated")
    magic, version, length, digest = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadContentError("not a Weft cache entry")
    if version != FORMAT:
        raise BadContentError(f"format version {version}, expected {FORMAT}")
    if length > status.st_size - _PREFIX.size:
        raise BadContentError("truncated")
    text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise BadContentError("the header does not match its digest")
    header = _parse_header(text, key)
    expected = _PREFIX.size + length + sum(size for _, size, _ in header.sections)
    if status.st_size != expected:
        raise BadContentError(f"{status.st_size} bytes, expected {expected}")
    return header


def _parse_header(text: bytes, key: str) -> Header:
    try:
        fields: Any = json.loads(text)
        found, created_by = str(fields["key"]), str(fields["created_by"])
        sections = [(str(name), int(size), str(digest)) for name, size, digest in fields["sections"]]
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise BadContentError(f"the header is malformed: {error!r}") from error
    if found != key:
        raise BadContentError(f"it is the entry of {found}")
    if any(size < 0 for _, size, _ in sections):  # file.read(-1) would read to the end
        raise BadContentError("the header has a negative size")
    return Header(created_by, sections)
