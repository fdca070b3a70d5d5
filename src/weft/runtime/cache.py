"""The disk cache of compiled executables: looked up before anything is compiled, filled after.

An entry is one file (`cache_entry`), named by the hash of everything that shaped the code (`cache_key`). Entries are
never changed in place, and a finished file appears under its name in one step, so readers and writers need no locks and
a process may die, or fork, at any moment. Nothing read is trusted: what does not check is a miss. A lock for each key
(`single_flight`) only saves work: of processes that miss at the same time one compiles.
"""

import hashlib
import logging
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from weft.config import truth
from weft.diagnostics import warn
from weft.runtime.cache_entry import (
    OTHERS_WRITE,
    BadContentError,
    CacheEntry,
    encode_entry,
    load_entry,
    open_entry,
    read_header,
    weft_version,
    write_entry,
)
from weft.runtime.paged_data import PagedData
from weft.runtime.single_flight import Flight, SingleFlight

T = TypeVar("T")
KeyPart: TypeAlias = "str | bytes | int | float | tuple[KeyPart, ...] | None"

_log = logging.getLogger("weft.cache")
_ELSEWHERE = "set WEFT_CACHE_DIR to a folder of yours, or WEFT_CACHE=0 to do without"
_ENTRY_NAME = re.compile(r"([0-9a-f]{64})\.weft")
_TEMP_NAME = re.compile(r"\.([0-9]{1,10})-[0-9a-f]{16}\.tmp")
# A process id is only known to be dead in our own container: wait before believing it. And ids are used again.
_TEMP_GRACE_S, _TEMP_MAX_AGE_S = 60.0, 3600.0


@dataclass(frozen=True)
class StoredEntry:
    """One line of the cache's listing; `modified` (seconds since the epoch) is when it was last stored or used."""

    key: str
    size: int
    modified: float
    created_by: str


@dataclass(frozen=True)
class BadEntry:
    """An entry that `DiskCache.verify` found damaged, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class _File:
    path: Path
    label: str  # the key of an entry, the process id of a temporary file
    size: int
    modified: float


def cache_key(*parts: KeyPart) -> str:
    """The sha256, in hex, of the parts; two lists of parts that differ in value, type or nesting never encode alike."""
    return hashlib.sha256(_encode_part(parts)).hexdigest()


def _encode_part(part: KeyPart) -> bytes:
    match part:
        case None | bool():
            tag, payload = b"c", repr(part).encode()
        case int():
            tag, payload = b"i", format(part, "x").encode()
        case float():
            tag, payload = b"f", struct.pack(">d", part)
        case str():
            tag, payload = b"s", part.encode("utf-8", "surrogatepass")
        case bytes():
            tag, payload = b"b", part
        case tuple():
            tag, payload = b"t", b"".join(map(_encode_part, part))
        case _:
            raise TypeError(f"a cache key is made of str, bytes, int, float, None and tuples, not {type(part)}")
    return tag + struct.pack(">Q", len(payload)) + payload


class DiskCache:
    """A directory of entries, shared by all processes of one user; over the limit, the least recently used go.

    The limit holds exactly for one writer; each further process that writes at the same time may overshoot by a tenth.
    """

    def __init__(self, root: Path | None = None, limit_bytes: int = 2 << 30) -> None:
        self.root = root.absolute() if root is not None else _default_root()
        self.limit_bytes = limit_bytes
        self.enabled = self.root is not None and truth("WEFT_CACHE", default=True)
        self._goal = limit_bytes - limit_bytes // 10
        self._room = 0  # bytes to write before the directory is looked at again
        self._refused = False
        self._flights = SingleFlight()

    def get(self, key: str) -> CacheEntry | None:
        """The entry, or None: absent, damaged, written by another version, or not readable."""
        name = _entry_name(key)
        if not self.enabled or (root := self._trusted_root()) is None:
            return None
        path = root / name
        try:
            entry, created_by = load_entry(path, key)
            if created_by == weft_version():
                return entry
            raise BadContentError(f"written by Weft {created_by}, this is {weft_version()}")
        except FileNotFoundError:
            return None
        except BadContentError as bad:
            advice = "it is removed, the program is compiled anew"
            warn("cache", f"cache entry {path} is not used", str(bad), advice, cause=f"{root}: {bad}")
            _remove(path)
        except (OSError, MemoryError) as error:
            warn("cache", f"cache entries in {root} are not read", str(error), "the programs are compiled anew")
        return None

    def put(self, key: str, meta: Mapping[str, Any], blobs: Mapping[str, bytes | PagedData]) -> None:
        """Stores an entry, replacing one with the same key; a failure to write is logged and is not an error."""
        name = _entry_name(key)
        if not self.enabled or (root := self._trusted_root(create=True)) is None:
            return
        sections = encode_entry(key, meta, blobs)
        size = sum(map(len, sections))
        if size > self._goal:
            why = f"{size} bytes do not fit in a cache of {self.limit_bytes}"
            warn("cache", f"a compiled program is not kept in {root}", why, "the next process compiles it anew")
            return
        try:
            # Large data is checked when it is read: waiting for a disk to have it would cost more than making it anew.
            write_entry(root / name, sections, durable=not any(isinstance(each, PagedData) for each in blobs.values()))
        except OSError as error:
            why = error.strerror or str(error)
            warn("cache", f"compiled programs are not kept in {root}", why, _ELSEWHERE)
            return
        self._room -= size
        if self._room <= 0:
            self._evict(root)

    def lead(self, key: str, is_there: Callable[[], T | None]) -> tuple[Flight, T | None]:
        """The right to make an entry that is missing, or what `is_there` finds when another process has made it.

        It waits, though not for ever, for a process that makes it now.
        """
        _entry_name(key)
        if not self.enabled or (root := self._trusted_root(create=True)) is None:
            return Flight(key, None), None
        return self._flights.lead(root, key, is_there)

    def entries(self) -> list[StoredEntry]:
        """All entries, the most recently used first; only their headers are read."""
        files = [] if (root := self._trusted_root()) is None else _scan(root, _ENTRY_NAME)
        return [StoredEntry(file.label, file.size, file.modified, _created_by(file)) for file in reversed(files)]

    def clear(self) -> int:
        """Removes every entry, and what dead writers left; returns how many entries went."""
        if (root := self._trusted_root()) is None:
            return 0
        _remove_stale_temps(root)
        self._room = 0
        return sum(_remove(file.path) for file in _scan(root, _ENTRY_NAME))

    def verify(self, fix: bool = False) -> list[BadEntry]:
        """Reads every entry whole and returns the bad ones; other Weft versions' are not bad. `fix` removes them."""
        if (root := self._trusted_root()) is None:
            return []
        bad: list[BadEntry] = []
        for file in _scan(root, _ENTRY_NAME):
            try:
                load_entry(file.path, file.label, touch=False)
            except FileNotFoundError:
                continue  # removed by another process since the scan
            except (BadContentError, OSError, MemoryError) as error:
                bad.append(BadEntry(file.label, str(error)))
                if fix:
                    _remove(file.path)
        return bad

    def unusable(self) -> str | None:
        """Why nothing can be kept here, None if it can; a folder that is not there yet must be one to be made."""
        if self.root is None:
            return "there is no home folder"
        near = next(path for path in (self.root, *self.root.parents) if os.path.lexists(path))
        if not near.is_dir():
            return f"{near} is not a directory"
        if near == self.root and (distrust := _distrust(near.stat())) is not None:
            return distrust
        # The superuser may write everywhere, but no folder can be made in a file system of the kernel's.
        kernels = near.parts[1:2] in (("proc",), ("sys",))
        return f"{near} cannot be written" if kernels or not os.access(near, os.W_OK | os.X_OK) else None

    def _trusted_root(self, create: bool = False) -> Path | None:
        """The directory if it is there and ours: entries are machine code, so another user must not choose them."""
        if self.root is None:
            return None
        try:
            if create:
                _make_private(self.root)
            status = self.root.stat()
        except FileNotFoundError as error:
            return self._refuse(str(error)) if create else None
        except OSError as error:
            return self._refuse(str(error))
        distrust = _distrust(status)
        return self.root if distrust is None else self._refuse(distrust)

    def _refuse(self, reason: str) -> None:
        if not self._refused:
            warn("cache", f"compiled programs are not kept in {self.root}", reason, _ELSEWHERE)
        self._refused = True

    def _evict(self, root: Path) -> None:
        """Brings the directory to a tenth below the limit if it is over, so that not every write has to look at it."""
        _remove_stale_temps(root)
        files = _scan(root, _ENTRY_NAME)
        total = sum(file.size for file in files)
        if total > self.limit_bytes:
            for file in files:
                if total <= self._goal:
                    break
                _remove(file.path)
                total -= file.size
        self._room = min(self.limit_bytes - total, self.limit_bytes // 10)


def _make_private(root: Path) -> None:
    """Make a directory that is its owner's alone, whatever the umask; one that is there stays as it is."""
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        return
    root.chmod(0o700)


def _distrust(status: os.stat_result) -> str | None:
    """Why a directory is not to be used, None if it is: whoever writes there chooses what this process runs."""
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid != os.geteuid():
        return f"it is owned by user {status.st_uid}, not by {os.geteuid()}"
    if status.st_mode & OTHERS_WRITE:
        return f"others than its owner can write to it (mode {stat.S_IMODE(status.st_mode):o}): `chmod go-w` it"
    return None


def _default_root() -> Path | None:
    if configured := os.environ.get("WEFT_CACHE_DIR"):
        return Path(os.path.expanduser(configured)).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification says to ignore a relative one
        return Path(base) / "weft"
    try:
        return Path.home() / ".cache" / "weft"
    except RuntimeError as error:
        warn("cache", "there is no disk cache", str(error), _ELSEWHERE)
        return None


def _entry_name(key: str) -> str:
    if not _ENTRY_NAME.fullmatch(name := f"{key}.weft"):
        raise ValueError(f"a cache key is 64 lower-case hex digits, as cache_key() makes them, not {key!r}")
    return name


def _created_by(file: _File) -> str:
    try:
        with open_entry(file.path) as opened:
            return read_header(opened, file.label).created_by
    except (BadContentError, OSError, MemoryError):
        return "unreadable"


def _scan(root: Path, name: re.Pattern[str]) -> list[_File]:
    """The files whose whole name matches, the oldest first; all others are not ours and are left alone."""
    files: list[_File] = []
    try:
        names = os.listdir(root)
    except OSError as error:
        warn("cache", f"the cache in {root} cannot be listed", str(error), _ELSEWHERE)
        return files
    for found in filter(None, map(name.fullmatch, names)):
        path = root / found.string
        try:
            status = path.lstat()
        except OSError as error:
            _log.debug("%s went away: %s", path, error)
            continue
        files.append(_File(path, found[1], status.st_size, status.st_mtime))
    return sorted(files, key=lambda file: (file.modified, file.label))


def _remove_stale_temps(root: Path) -> None:
    # A wrong guess costs a live writer one entry: its os.replace fails, which put() logs.
    for file in _scan(root, _TEMP_NAME):
        age = time.time() - file.modified
        if age > _TEMP_MAX_AGE_S or (age > _TEMP_GRACE_S and not _is_alive(int(file.label))):
            _remove(file.path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        why, where = error.strerror or str(error), path.parent
        warn("cache", f"{path} cannot be removed from the cache", why, cause=f"remove from {where}: {why}")
        return False
    return True
