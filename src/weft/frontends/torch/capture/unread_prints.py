"""Graphs that AOTAutograd prints for torch's logs are printed only where there is somebody to read them.

It writes each joint, forward and backward graph as text, and then asks whether a log takes it: a twentieth of the time
of a first step.
"""

# torch has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from torch import fx
from torch._logging import _internal as logs

_within: ContextVar[bool] = ContextVar("_within", default=False)


@contextmanager
def without_unread_prints() -> Generator[None]:
    """Let what this thread prints of graphs, and not to the user, be empty unless torch's logs are turned on."""
    _watch_prints()
    token = _within.set(True)
    try:
        yield
    finally:
        _within.reset(token)


@cache
def _watch_prints() -> None:
    modules: Any = fx.GraphModule
    write = modules.print_readable

    @wraps(write)
    def printed(self: Any, print_output: bool = True, *arguments: Any, **options: Any) -> str:
        if _within.get() and not print_output and not _are_read():
            return ""
        return write(self, print_output, *arguments, **options)

    modules.print_readable = printed


def _are_read() -> bool:
    """Whether any log of torch's is turned on that could take a graph: a trace (`TORCH_TRACE`), or `TORCH_LOGS`."""
    state: Any = getattr(logs, "log_state", None)
    trace: Any = getattr(logs, "trace_log", None)
    if state is None or trace is None:
        return True  # another release has other names
    return bool(trace.handlers or state.artifact_names or state.log_qname_to_level)
