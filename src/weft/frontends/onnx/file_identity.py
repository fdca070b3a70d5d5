"""Which file a model was read from, and in which state: what is made of its weights is kept under that.

A digest of all weights would take longer than what it saves. A file's status tells as much where the kernel sets the
time at which it was last changed, as on local file systems. It does not tell of all changes: file systems of programs
and of other machines (FUSE, sshfs) state times of their own, and stores through a writable mapping set the time when a
page is first written to, or written back, not with each store. The docs say so, and to replace files whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK_NS, _COARSE_TICK_NS = 100_000_000, 3_000_000_000
"""How long after a change the next one is sure to be seen in a file's times; some file systems count seconds."""


@dataclass(frozen=True)
class FileIdentity:
    """A file as it was when it was opened."""

    path: Path
    stamp: tuple[int, ...]
    settled: bool
    """Whether a change since then would be seen."""

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> FileIdentity:
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        tick = _TICK_NS if status.st_ctime_ns % 1_000_000 else _COARSE_TICK_NS
        return cls(path, _stamp(status), time.time_ns() - changed > tick)

    def is_current(self) -> bool:
        """Whether the file is as it was."""
        try:
            return self.settled and _stamp(os.stat(self.path)) == self.stamp
        except OSError:
            return False


def stamps_of(files: Sequence[FileIdentity]) -> tuple[tuple[int, ...], ...] | None:
    """What the files of a model are known by; None where one has changed, or there are none."""
    return tuple(each.stamp for each in files) if files and all(each.is_current() for each in files) else None


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
