"""What a forked child must not inherit: a lock that another thread held, which nobody would release there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

COMPILING = threading.RLock()
"""Held while anything is compiled, and around every use of LLVM; a fork waits for it."""


def pause(seconds: float) -> None:
    """Sleep, and let others compile and forks go on meanwhile, also where this thread holds `COMPILING`."""
    with COMPILING:
        threading.Condition(COMPILING).wait(seconds)


class Background(Protocol):
    """Work of other threads."""

    def wait(self) -> None:
        """Return when it is done."""
        ...


BACKGROUND: WeakSet[Background] = WeakSet()
"""What goes on in threads that take no part in `COMPILING`, and may outlast whoever holds it: only that one adds to it.

A fork waits for it as well.
"""


def release_after_fork(lock: Any) -> None:
    """Make every fork wait for `COMPILING`, the background, and a lock, and leave both locks free on both sides."""

    def acquire() -> None:
        # Whoever compiles adds to the background, so that is complete only now; to end, it needs the other lock.
        COMPILING.acquire()
        try:
            for work in list(BACKGROUND):
                work.wait()
        finally:  # A fork goes on after an interrupt, and `release` follows.
            lock.acquire()

    def release() -> None:
        lock.release()
        COMPILING.release()

    os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)


def compiled_once(make: Callable[P, T]) -> Callable[P, T]:
    """`functools.cache` for what is compiled: threads that ask at the same time all get the same one.

    `functools.cache` lets each of them make its own, and so keep threads, hooks and memory of its own.
    """
    made: dict[tuple[Any, ...], T] = {}

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        key = (*args, *kwargs.items())
        if key not in made:
            with COMPILING:
                if key not in made:
                    made[key] = make(*args, **kwargs)
        return made[key]

    return get


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:
        """`functools.cached_property` without the lock that Python 3.11 has in it: two threads may both compute."""

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self.compute(instance)
            instance.__dict__[self.name] = value
            return value
