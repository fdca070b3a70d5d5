"""Warnings: each cause once, from whichever thread, and on both sides of a fork."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from weft.diagnostics import warn


class _Slow(str):
    """A cause that takes its time to be looked up."""

    __slots__ = ("asked", "go_on")

    def __hash__(self) -> int:
        self.asked.set()
        self.go_on.wait(20)
        return super().__hash__()


def test_threads_that_find_the_same_cause_tell_it_once(caplog: pytest.LogCaptureFixture) -> None:
    ready = threading.Barrier(8)

    def tell() -> None:
        ready.wait()
        warn("cache", "the same")

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.messages) == 1


def test_a_child_forked_while_a_thread_warns_can_warn() -> None:
    cause = _Slow("slow")
    cause.asked, cause.go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=warn, args=("cache", "slow"), kwargs={"cause": cause})
    thread.start()
    cause.asked.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(10)  # which ends it, if it waits for the parent's thread
        os._exit(0 if warn("cache", "quick") else 1)
    cause.go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
