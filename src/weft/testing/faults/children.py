"""Forked children that do one thing each: what they say of it, or how they ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GOOD, WRONG, CRASHED, HUNG, KILLED = "good", "wrong", "crashed", "hung", "killed"


_MOST_LIMITS = 4
_COMPUTES = 0.005
"""The part of the time that a child which waits for nothing computes for at least, however busy the machine."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended, and what there is to say."""

    kind: str
    said: str = ""

    @property
    def is_bad(self) -> bool:
        return self.kind in (WRONG, CRASHED, HUNG)


class Forked:
    """A child that runs a function, which says what is wrong, or None."""

    def __init__(self, function: Callable[[], str | None]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            _run(function, write)
        os.close(write)

    def outcome(self, limit: float, *, killed_after: float | None = None) -> Outcome:
        """Wait for the end, and make it where the child takes too long, or is to be killed after some seconds.

        One that computes is given the limit again, a few times: on a busy machine it is slow, one that waits for a lock
        is not.
        """
        ready, before, computed = list[int](), 0.0, 0.0
        for _ in range(1 if killed_after is not None else _MOST_LIMITS):
            ready, _, _ = select.select([self._read], [], [], limit if killed_after is None else killed_after)
            computed = processor_seconds(self.pid)
            if ready or computed - before < _COMPUTES * limit:
                break
            before = computed
        if not ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        said = b""
        while part := os.read(self._read, 65536):
            said += part
        os.close(self._read)
        _, status = os.waitpid(self.pid, 0)
        if not ready:
            said = f"no answer after {limit:g} s, and {computed:.1f} s of computing"
            return Outcome(HUNG, said) if killed_after is None else Outcome(KILLED)
        if os.WIFSIGNALED(status):
            return Outcome(CRASHED, f"signal {signal.Signals(os.WTERMSIG(status)).name}: {said.decode()[:200]}")
        if os.WEXITSTATUS(status) == 0:
            return Outcome(GOOD)
        return Outcome(WRONG if said else CRASHED, said.decode(errors="replace")[:1000])


def in_child(function: Callable[[], str | None], limit: float = 120.0) -> Outcome:
    """Run a function in a child of its own."""
    return Forked(function).outcome(limit)


def _run(function: Callable[[], str | None], write: int) -> None:
    said: str | None
    try:
        said = function()
    except BaseException as error:  # whatever it is, it is for the parent to hear of
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"raised {error!r:.300} at {last.filename}:{last.lineno}"
    with contextlib.suppress(OSError):
        os.write(write, (said or "").encode())
    os._exit(1 if said else 0)


def processor_seconds(pid: int) -> float:
    """How long a process has computed; 0 if it is gone, or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition: Callable[[], bool], limit: float = 60.0) -> bool:
    """Whether a condition comes to hold in time."""
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
