"""One process compiles, the others wait for its entry: a lock for every key of the disk cache.

The locks are ranges of bytes of one file in the cache's folder, which never has a byte in it. The system releases them
when whoever holds them dies, whatever way that is. A wait is bounded: who hangs, holds others up once and for a while.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weft.diagnostics import warn
from weft.forks import pause

_log = logging.getLogger("weft.cache")
_NAME = ".lock"
_BUSY = (errno.EACCES, errno.EAGAIN)
# A lock of an open file, not of a process: those of a process go when it closes any other handle of the same file.
_SET: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK = struct.Struct("@hhqqi4x")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.002, 0.1

_held: dict[str, int] = {}
"""The keys that this process holds: whoever asks for one of them again must not wait for itself."""
_claiming = threading.Lock()
"""Two threads that ask for one key: the second of them sees that the first has it."""


def _forget() -> None:
    """Leave the locks to the parent: a child that kept the handles would hold them as long as it lives."""
    global _claiming
    _claiming = threading.Lock()
    for handle in _held.values():
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


class Flight:
    """The right to compile what a key stands for; without a lock where there are none, or where another hangs."""

    def __init__(self, key: str, handle: int | None) -> None:
        self._key, self._handle = key, handle
        self._process = os.getpid()

    def release(self) -> None:
        """Let others go on; more than once does no harm."""
        handle, self._handle = self._handle, None
        if handle is not None and self._process == os.getpid():
            if _held.get(self._key) == handle:
                del _held[self._key]
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class SingleFlight:
    """Lets one process at a time compile what a key stands for."""

    def __init__(self, patience_s: float = 180.0) -> None:
        self._patience_s = patience_s

    def lead(self, root: Path, key: str, is_there: Callable[[], Any]) -> tuple[Flight, Any]:
        """The right to compile, or what another process has made meanwhile, as `is_there` gives it; None is nothing.

        Where a wait was for nothing, because another hangs or stores nothing, the next one is shorter.
        """
        with _claiming:
            if _SET is None or key in _held or (handle := _open(root)) is None:
                return Flight(key, None), None
            _held[key] = handle
        flight = Flight(key, handle)
        try:
            waited = self._wait(handle, key)
            if waited is None:
                flight.release()
            found = is_there()  # also without a wait: another may have made it since the caller looked
        except BaseException:
            flight.release()
            raise
        if found is not None or waited is None:
            flight.release()
        elif waited:
            self._patience_s /= 2
        return flight, found

    def _wait(self, handle: int, key: str) -> bool | None:
        """Whether there was anything to wait for; None if it took too long, or the lock cannot be had at all."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, int(key[:12], 16), 1, 0)
        until, nap, waited = time.monotonic() + self._patience_s, _FIRST_NAP_S, False
        while True:
            try:
                assert _SET is not None
                fcntl.fcntl(handle, _SET, request)
                return waited
            except OSError as error:
                if error.errno not in _BUSY:
                    _log.debug("no lock in the cache: %s", error)
                    return None
            if time.monotonic() > until:
                why = f"after {self._patience_s:.3g} s another process still compiles it"
                self._patience_s /= 2
                warn("cache", "a program that others may compile is compiled here too", why)
                return None
            waited = True
            pause(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)


def _open(root: Path) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(root / _NAME, flags, 0o600)
    except OSError as error:  # a cache that can only be read, or a full disk: then everybody compiles
        _log.debug("no locks in the cache: %s", error)
        return None
