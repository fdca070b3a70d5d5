"""Warnings: what a user has to know although the program goes on; each cause is told once in a process.

    weft: model.py:12: aten._linalg_svd.default is left to torch, no converter; options={"fallback": ...} decides

They go to loggers below `weft` (`weft.fallback`, `weft.options`, `weft.freeze`, `weft.cache`, `weft.data`,
`weft.memory`, `weft.targets`, `weft.tracing`) at the level of warnings, which Python prints to stderr unless logging is
set up otherwise: `logging.getLogger("weft").setLevel("ERROR")` silences them all. The line is that of the user's
program: of the op, where one is to blame, else of the call that led here.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from types import FrameType

_told: dict[tuple[str, str | None, str], object] = {}
"""Of threads that tell the same thing one enters it. There is no lock: a forked child would inherit it held."""
_WEFT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep


def warn(
    topic: str,
    what: str,
    why: str = "",
    advice: str = "",
    *,
    location: str | None = None,
    cause: str | None = None,
    error: BaseException | None = None,
) -> bool:
    """Warn of something under a topic, if that was not done before; says whether it was done now.

    `location` is a line of the user's program, by default the one that called; with an `error` its traceback is shown.
    What was told of a `cause` (by default `what` and `why`) at a line is not told again.
    """
    what = f"{what}, {_line(why)}" if why else what
    key = topic, location, cause or what
    mine = object()
    if _told.setdefault(key, mine) is not mine:
        return False
    text = ": ".join(filter(None, ("weft", location or calling_line(), what)))
    text = f"{text}; {_line(advice)}" if advice else text
    logging.getLogger(f"weft.{topic}").warning("%s", text, exc_info=error)
    return True


def was_told(topic: str, cause: str, location: str | None = None) -> bool:
    """Whether a cause was told, at a line where one was given with it."""
    return (topic, location, cause) in _told


def forget() -> None:
    """Tell everything again that was told: for tests, and for notebooks that are run again."""
    _told.clear()


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean x?)`, where a known name is like it, else nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def calling_line() -> str | None:
    """The innermost line of the user's own program on the stack, as `file:line`; None where there is none."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if _is_users(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def raising_line(error: BaseException) -> str | None:
    """The innermost line of the user's own program that an error came through; None where there is none."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        found = f"{frame.f_code.co_filename}:{line}" if _is_users(frame) else found
    return found


def _is_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith((_WEFT, _PYTHON, *_torch(), "<"))


def _torch() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    return (os.path.dirname(file) + os.sep,) if file else ()


def _line(text: str) -> str:
    """A text of several lines as one."""
    return "; ".join(part.strip() for part in text.strip().splitlines() if part.strip())
