"""A fork waits until nothing is compiled any more, and threads that compile the same thing share it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import weft.backends.cpu.target  # noqa: F401  (what makes forks wait)
from weft.forks import BACKGROUND, COMPILING, compiled_once


class Work:
    """Work in the background."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def wait(self) -> None:
        self.done.wait()


def test_a_fork_waits_for_what_a_thread_that_compiles_leaves_to_others() -> None:
    work, compiles = Work(), threading.Event()

    def compile_() -> None:
        with COMPILING:
            compiles.set()
            time.sleep(0.1)  # meanwhile the fork is asked for
            BACKGROUND.add(work)
        threading.Timer(0.1, work.done.set).start()

    thread = threading.Thread(target=compile_)
    thread.start()
    compiles.wait()
    child = os.fork()
    if not child:
        os._exit(0 if work.done.is_set() else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert COMPILING.acquire(blocking=False)
    COMPILING.release()


def test_what_is_compiled_once_is_the_same_in_all_threads() -> None:
    made: list[object] = []

    @compiled_once
    def make(number: int) -> object:
        time.sleep(0.05)  # the others ask meanwhile
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(make, [1] * 4))
    assert len(made) == 1 and set(map(id, found)) == {id(made[0])}
    assert make(2) is not make(1) is made[0]


def test_what_failed_to_compile_is_tried_again() -> None:
    tries = [ValueError("at first"), None]

    @compiled_once
    def make() -> int:
        error = tries.pop(0)
        if error is not None:
            raise error
        return 5

    with pytest.raises(ValueError, match="at first"):
        make()
    assert make() == make() == 5 and not tries
