"""The threads of the process: the OpenMP pool that the framework has loaded, else a pool of Weft's own.

Two pools in one process fight over the cores, so Weft brings its own (`backends.cpu.thread_pool`) only where there is
none when its first program is loaded. A forked child cannot use its parent's OpenMP pool and runs everything in one
thread; Weft's own makes its threads anew there.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from weft.backends.cpu.target import host_target
from weft.backends.cpu.thread_pool import has_own_pool
from weft.runtime.cores import available_cores

SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_FRAMEWORK, _POOL = r"^libtorch_cpu", r"^lib(gomp|omp|iomp5)[.-]"
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def in_forked_child() -> bool:
    """Whether this process was forked after Weft was imported."""
    return _forked


def loaded_libraries(pattern: str) -> list[str]:
    """Paths of the shared libraries in this process whose file name matches."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line}
    return sorted(path for path in paths if re.search(pattern, Path(path).name))


def _pools() -> Iterator[ctypes.CDLL]:
    """Libraries that may hold the pool, the framework's first.

    Several copies of one may be loaded, each with threads of its own: packages bring theirs. What the framework's calls
    are bound to is found as its loader finds it: in the process, then in what the framework's library depends on.
    """
    yield ctypes.CDLL(None)
    loaded = [path for pattern in (_FRAMEWORK, _POOL) for path in loaded_libraries(pattern)]
    for path in loaded:
        try:
            yield ctypes.CDLL(path)
        except OSError:
            continue


@lru_cache(maxsize=1)
def pool_symbols() -> dict[str, int]:
    """Addresses of the OpenMP entry points, or an empty dict where no such library is loaded."""
    for library in _pools():
        try:
            return {name: address_of(library, name) for name in SYMBOLS}
        except AttributeError:
            continue
    return {}


def uses_own_pool() -> bool:
    """Whether programs run on Weft's own threads."""
    return not pool_symbols() and has_own_pool(host_target().triple)


def can_use_threads() -> bool:
    """Whether programs can run in more than one thread of this process."""
    return uses_own_pool() or (bool(pool_symbols()) and not in_forked_child())


def stay_alone() -> None:
    """In a forked child, let what this thread calls of libraries run in this thread alone.

    Its OpenMP pool has stayed in the parent: a library that hands work to it, such as BLAS, would wait for ever.
    """
    if (library := _pool_library()) is not None:
        library.omp_set_num_threads(1)
        # A number of threads that was asked of a library itself, MKL's for example, does not override this one.
        library.omp_set_max_active_levels(0)


@lru_cache(maxsize=1)
def _pool_library() -> ctypes.CDLL | None:
    return next((each for each in _pools() if hasattr(each, "omp_set_max_active_levels")), None)


def pool_threads() -> int:
    """How many threads the pool runs a loop in, as the framework has set it; 1 where there is no pool."""
    if uses_own_pool():
        return _stated_threads() or available_cores()
    for library in _pools():
        try:
            return int(library.omp_get_max_threads())
        except AttributeError:
            continue
    return 1


def _stated_threads() -> int:
    """What OMP_NUM_THREADS says, of which the first number is meant for loops that are in no other; 0 if nothing."""
    stated = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(stated) if stated.isdecimal() else 0


def default_threads() -> int:
    """How many threads to use where no framework says: OMP_NUM_THREADS, or the cores that there are for us."""
    return pool_threads() if os.environ.get("OMP_NUM_THREADS") else available_cores()


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where a symbol of a library lies; AttributeError if there is none."""
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address
