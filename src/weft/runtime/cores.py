"""How many cores this process may use: those it is bound to, and what its control groups let it have of them.

/proc/self/cgroup     0::/user.slice/job          one hierarchy (version 2): cpu.max, "quota period" or "max period"
                      4:cpu,cpuacct:/job          one for processors (version 1): cpu.cfs_quota_us, -1 for none
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from weft.errors import GuardError

_GROUPS, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def available_cores() -> int:
    """The number of cores for threads, at least one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return bound if quota is None else max(1, min(bound, -int(-quota // 1)))


def checked_threads(threads: int | None) -> int | None:
    """How many threads a caller asks for, at least one; None for as many as there are cores."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):  # type: ignore[redundant-expr]
        raise GuardError(f"threads is {threads!r}, expected a number from 1 on", hint="leave it out for all cores")
    return threads


@lru_cache(maxsize=4)
def cpu_quota(groups: Path = _GROUPS, mount: Path = _MOUNT) -> float | None:
    """The processor time that all control groups above this process allow it, in cores; None if as much as there is."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            found += _quotas(mount, path, _of_one_hierarchy)
        elif "cpu" in controllers.split(","):
            for folder in (mount / controllers, mount / "cpu"):
                found += _quotas(folder, path, _of_processors)
    return min(found, default=None)


def _quotas(mount: Path, path: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    """The limits of a group and of those around it. Inside a container the path may be one of the host's."""
    inner = PurePosixPath(path.lstrip("/"))
    for folder in (inner, *inner.parents):
        quota = read(mount / folder)
        if quota is not None and quota > 0:
            yield quota


def _of_one_hierarchy(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    return _share(*words) if len(words) == 2 else None


def _of_processors(folder: Path) -> float | None:
    words = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    return _share(*words) if len(words) == 2 else None


def _share(quota: str, period: str) -> float | None:
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or nothing that this kernel's documents know
        return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
