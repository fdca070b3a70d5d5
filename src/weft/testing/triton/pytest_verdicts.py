"""What the pytest plugins of conformance runs share: a time limit for each test, and one line on why it failed."""

# pytest's plugin machinery is not fully typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import faulthandler
import re
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

HANGING = 3.0
"""After so many time limits a test that does not come back to Python ends its process."""


class TimeLimitError(Exception):
    """A test took too long."""


@contextmanager
def time_limited(limit: float) -> Generator[None]:
    """Raise in what runs in here after so many seconds; where it does not come back to Python, end the process."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeLimitError(f"took more than {limit:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(limit * HANGING, exit=True, file=_stderr())
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def _stderr() -> TextIO:
    return sys.__stderr__ or sys.stderr


def message_of(report: Any) -> str:
    """What a report of pytest says of a test that did not pass."""
    described = report.longrepr
    if report.skipped and isinstance(described, tuple):
        return str(described[2]).removeprefix("Skipped: ")
    crash = getattr(described, "reprcrash", None)
    return crash.message if crash is not None else str(described)


def is_wrong_result(message: str) -> bool:
    """Whether a test failed because it did not get what it expected."""
    return message.lstrip().startswith(("AssertionError", "assert"))


def cause_of(report: Any) -> str:
    """One line that failures of one kind have in common."""
    line = first_line(message_of(report))
    if not report.skipped and is_wrong_result(line):
        function = report.nodeid.partition("[")[0].rpartition("::")[2]
        return f"wrong result in {function}"
    return line


def first_line(message: str) -> str:
    """The first line of a message, without what differs from test to test."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = lines[0] if lines else "no message"
    line = re.sub(r"^(?:[\w]+\.)+(\w+(?:Error|Exception|Failure|Exit)\b)", r"\1", line)
    line = re.sub(r"0x[0-9a-f]+", "0x…", line)
    return re.sub(r"\d+", "#", line)[:160]
