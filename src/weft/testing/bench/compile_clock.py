"""How long compilers work inside their backend: from the graphs that AOTAutograd hands over to callables in return.

    with compile_clock() as clock:
        torch.compile(model, backend="inductor")(x)
    print(clock.seconds, clock.graphs)

Inductor and Weft both receive their graphs from `AotAutograd`, so both are timed at the same place.
"""

# AotAutograd is private to torch and has no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch


@dataclass
class CompileClock:
    """The time spent inside backends so far, and the graphs that they compiled."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Of all threads of this process: what a machine that is shared with others does not change."""
    graphs: int = 0
    _depth: int = 0

    def timed(self, compiler: Callable[..., Any]) -> Callable[..., Any]:
        """The compiler with its time counted; one that runs inside another is part of that other's time."""

        @wraps(compiler)
        def compile(*arguments: Any, **named: Any) -> Any:
            start, worked = time.perf_counter(), time.process_time()
            self._depth += 1
            try:
                return compiler(*arguments, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - start
                    self.processor_seconds += time.process_time() - worked
                    self.graphs += 1

        return compile


@contextmanager
def compile_clock() -> Generator[CompileClock]:
    """Count what the backends do inside the `with`."""
    from torch._dynamo.backends.common import AotAutograd

    clock, call = CompileClock(), AotAutograd.__call__

    def timed_call(self: Any, *arguments: Any, **named: Any) -> Any:
        timed: dict[int, Any] = {}  # the same compiler may serve twice; it is wrapped once
        for key in ("fw_compiler", "bw_compiler", "inference_compiler"):
            compiler = self.kwargs.get(key)
            if compiler is None:
                continue
            if id(compiler) not in timed:
                timed[id(compiler)] = _timed(clock, compiler)
            self.kwargs[key] = timed[id(compiler)]
        return call(self, *arguments, **named)

    with patch.object(AotAutograd, "__call__", timed_call):
        yield clock


def _timed(clock: CompileClock, compiler: Any) -> Any:
    # Inductor's compilers are objects around the function; AOTAutograd tells by their class what it may cache.
    if hasattr(compiler, "compiler_fn"):
        compiler.compiler_fn = clock.timed(compiler.compiler_fn)
        return compiler
    return clock.timed(compiler)
