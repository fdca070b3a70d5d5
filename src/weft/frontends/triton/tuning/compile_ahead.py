"""Configs are compiled ahead of being measured: while a thread writes one kernel, LLVM and the driver work on others.

configs ──► threads: written one at a time, compiled and loaded side by side ──► ready(config) ──► measured
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from weft.frontends.triton.tuning.config import Config
from weft.runtime.cores import available_cores

_MOST_THREADS = 8
"""Only one of them writes a kernel at a time; more have nothing to do."""


@contextmanager
def compiled_ahead(
    configs: Sequence[Config], compile_config: Callable[[Config], Any]
) -> Generator[Callable[[Config], None]]:
    """Compile configs in other threads. `ready(config)` waits for one of them, and raises what its compilation did.

    At the end, what was not begun is left out.
    """
    threads = max(1, min(_MOST_THREADS, available_cores(), len(configs)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="weft-tune")
    try:
        under_way = {config: pool.submit(copy_context().run, compile_config, config) for config in configs}

        def ready(config: Config) -> None:
            if config in under_way:
                under_way[config].result()

        yield ready
    finally:
        pool.shutdown(cancel_futures=True)
