"""What programs on a GPU find wrong with their data, said when the GPU has got there: nobody waits for it.

A program's last result is the number of what it has found, as on a CPU. It stays on the GPU: the greatest so far is
copied to where the processor can see it, behind the program, and the next call of any program that checks its data
looks there. Indices that lie outside read and write nothing foreign meanwhile: the nearest element takes their place.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence

import numpy as np
import torch

from weft.diagnostics import warn
from weft.errors import WeftError
from weft.frontends.torch.importer.checks import Check, failure

_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch:
    """The verdicts of one program: `found` is where the processor sees the greatest of them."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)
        self._memory: tuple[torch.Tensor, torch.Tensor] | None = None
        self.found: np.ndarray = np.zeros((), np.int64)
        _watches.add(self)

    def note(self, verdict: torch.Tensor) -> None:
        """Let the GPU add a verdict to those before, when it has got there.

        Not in a graph that the user captures: replays may outlive the memory that verdicts go to.
        """
        if verdict.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if self._memory is None:
            with torch.inference_mode(False):  # calls outside of it write there too
                seen = torch.zeros((), dtype=torch.int64, pin_memory=verdict.is_cuda)
                self._memory = torch.zeros((), dtype=torch.int64, device=verdict.device), seen
            self.found = seen.numpy()
        total, seen = self._memory
        torch.maximum(total, verdict, out=total)
        seen.copy_(total, non_blocking=True)

    def take(self) -> WeftError | None:
        """The error that was found; the next one is looked for from here on."""
        if self._memory is None:
            return None
        total, seen = self._memory
        if total.is_cuda:
            torch.cuda.synchronize(total.device)  # no older verdict may arrive any more
        code = int(seen)
        total.zero_()
        seen.zero_()
        return failure(self.checks, code) if code else None


def raise_found() -> None:
    """Raise what any program has found since, if the GPU has got there."""
    for watch in _watches.copy():
        if watch.found and (error := watch.take()) is not None:
            raise error


def warn_at_exit() -> None:
    """Tell what no call could raise any more."""
    for watch in list(_watches):
        if watch.found:
            error = failure(watch.checks, int(watch.found))
            what = "a program on the GPU has met wrong data, and no later call could raise it"
            warn("data", what, error.message, error.hint or "", location=error.location)


atexit.register(warn_at_exit)
