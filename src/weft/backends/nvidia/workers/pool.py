"""The workers of this process: started before they are needed, used once they are ready, and done without where not.

start_workers(8)                        # tracing goes on meanwhile
workers = ready_workers()               # None until some are
with workers.taken() as worker: ...
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import select
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whoever only starts workers need not wait for these
    from weft.backends.nvidia.ir.kernel_passes import KernelPass
    from weft.backends.nvidia.target import NvidiaTarget

_LEAST_CORES = 4
"""With fewer, processes would take the time of the one that traces."""
_MOST, _LEFT = 8, 2
"""Workers, and the cores that are left to this process."""
_PATIENCE = 30.0
"""Seconds after which a kernel is compiled here if no worker takes it: all may have died."""
LAUNCH, REFUSED, FAILED, READY, PTX = "launch", "refused", "failed", "ready", "ptx"
"""What an answer is: `LAUNCH` with notes of the passes, and `PTX` after it, or why there is no kernel."""
_MODULE = "weft.backends.nvidia.workers.worker"


class WorkerDied(Exception):
    """A worker has ended, or cannot be understood: what it was to do is done here."""


class Worker:
    """One process, and whether it has said that it is ready."""

    def __init__(self) -> None:
        paths = os.pathsep.join(each for each in sys.path if each) or os.environ.get("PYTHONPATH", "")
        # Their threads would be as many as there are cores in each process.
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],  # modules of this process's paths, not of where it was started
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt is for the process that it is meant for
        )
        self._is_ready = False
        self._passes: Sequence[KernelPass] = ()

    def is_ready(self) -> bool:
        """Whether it takes kernels; it is not waited for."""
        assert self._process.stdout is not None
        if not self._is_ready and select.select([self._process.stdout], [], [], 0)[0]:
            self.answer()
            self._is_ready = True
        return self._is_ready

    def ask(self, kernel: bytes, target: NvidiaTarget, passes: Sequence[KernelPass]) -> None:
        """Send a kernel; two answers come, or one that says why not."""
        assert self._process.stdin is not None
        given = None if passes is self._passes else pickle.dumps(tuple(passes))
        try:
            self._process.stdin.write(pickle.dumps((target, given, kernel)))
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerDied(repr(error)) from error
        self._passes = passes

    def answer(self) -> tuple[Any, ...]:
        """The next answer."""
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerDied(repr(error)) from error

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """End it, whatever it is at."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


class Workers:
    """Those of a process, of which each serves one kernel at a time."""

    def __init__(self, count: int) -> None:
        self._owner = os.getpid()
        self._all = [Worker() for _ in range(count)]
        self._starting = list(self._all)
        self._idle: queue.Queue[Worker] = queue.Queue()

    @property
    def are_own(self) -> bool:
        """Whether this process has started them, and is not a fork of the one that has."""
        return self._owner == os.getpid()

    @property
    def are_alive(self) -> bool:
        """Whether there are any that are ready, or will be."""
        return not all(worker.has_ended for worker in self._all)

    def are_ready(self) -> bool:
        """Whether any takes kernels now."""
        for worker in list(self._starting):
            with suppress(WorkerDied):
                if not worker.is_ready():
                    continue
                self._idle.put(worker)
            self._starting.remove(worker)
        return len(self._starting) < len(self._all) and self.are_alive

    @contextmanager
    def taken(self) -> Generator[Worker]:
        """A worker that no other thread has; one that dies meanwhile does not come back."""
        try:
            while (worker := self._idle.get(timeout=_PATIENCE)).has_ended:
                pass
        except queue.Empty:
            raise WorkerDied("none is free") from None
        try:
            yield worker
        except BaseException:
            worker.end()  # what it would answer next is not known
            raise
        self._idle.put(worker)

    def end(self) -> None:
        """End all of them."""
        for worker in self._all:
            worker.end()


_pool: list[Workers] = []


def start_workers(cores: int) -> None:
    """Start workers, unless there are some, or too few cores for them."""
    if cores < _LEAST_CORES or not sys.executable or (_pool and _pool[0].are_own and _pool[0].are_alive):
        return
    if not _pool:
        atexit.register(end_workers)
    with suppress(OSError):  # a machine that starts no more processes compiles in this one
        _pool[:] = [Workers(min(_MOST, cores - _LEFT))]


def ready_workers() -> Workers | None:
    """The workers of this process, if any of them takes kernels now."""
    return _pool[0] if _pool and _pool[0].are_own and _pool[0].are_ready() else None


def end_workers() -> None:
    """End the workers of this process."""
    for workers in _pool:
        if workers.are_own:
            workers.end()
    _pool.clear()
