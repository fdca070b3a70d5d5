"""When Python's garbage collector must wait: while programs are compiled, and while a GPU's work is captured."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Generator[None]:
    """No garbage collection: it would walk all of the user's objects, several times, to find little."""
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
