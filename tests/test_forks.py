"""A fork waits until nothing is compiled any more."""

from __future__ import annotations

import os
import threading
import time

import weft.backends.cpu.target  # noqa: F401  (what makes forks wait)
from weft.forks import BACKGROUND, COMPILING


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
