"""The first call of a graph whose kernels are still compiled when tracing goes on: it waits for what is left.

Dynamo writes guards and bytecode in the meantime, which takes as long as the driver takes for a large kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.forks import COMPILING
from weft.runtime.record import CompilationRecord

Boxed: TypeAlias = Callable[[list[Any]], Sequence[Any]]


@dataclass
class Loading:
    """How the first call gets what does the work, and what does it if that fails."""

    load: Callable[[], Boxed]
    otherwise: Callable[[Exception], Boxed]
    record: CompilationRecord

    def finish(self) -> Boxed:
        start = time.perf_counter()
        try:
            return self.load()
        except Exception as error:
            return self.otherwise(error)
        finally:
            self.record.measure("first_call", start)


@dataclass
class FirstCall:
    """What AOTAutograd calls: a first call waits for what is still compiled, later ones go straight through."""

    loading: Loading | None
    loaded: Boxed | None = None
    _boxed_call: bool = True

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self.loaded is None:
            self._finish()
            assert self.loaded is not None
        return self.loaded(arguments)

    def _finish(self) -> None:
        with COMPILING:
            if self.loading is not None:
                self.loaded = self.loading.finish()
                self.loading = None  # and with it the graph
