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
import threading
import time
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
_PATIENCE, _GLANCE = 30.0, 0.2
"""Seconds after which a kernel is compiled here if no worker takes it, and after which it is seen who lives."""
WRITTEN, REFUSED, FAILED, READY, PTX = "written", "refused", "failed", "ready", "ptx"
"""What an answer is: `WRITTEN` with notes of the passes, and `PTX` after it, or why there is no kernel."""
_MODULE = "weft.backends.nvidia.workers.worker"


class WorkerDied(Exception):
    """A worker has ended, or cannot be understood: what it was to do is done here."""


class Worker:
    """One process, and whether it has said that it is ready."""

    def __init__(self) -> None:
        paths = os.pathsep.join(each for each in sys.path if isinstance(each, str) and each)  # pyright: ignore[reportUnnecessaryIsInstance]
        # Their threads would be as many as there are cores in each process.
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        answers, theirs = os.pipe()  # whatever code prints while it is imported is no answer
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs)],  # modules of this process's paths alone
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs],
                start_new_session=True,  # an interrupt is for the process that it is meant for
            )
        except BaseException:
            os.close(answers)
            raise
        finally:
            os.close(theirs)
        self._answers = os.fdopen(answers, "rb")
        self.has_begun = False
        """Whether it has said that it takes kernels."""
        self._passes: Sequence[KernelPass] = ()

    def is_ready(self) -> bool:
        """Whether it takes kernels; it is not waited for."""
        if not self.has_begun and select.select([self._answers], [], [], 0)[0]:
            self.has_begun = self.answer()[0] == READY
        return self.has_begun

    def ask(self, kernel: bytes, target: NvidiaTarget, passes: Sequence[KernelPass]) -> None:
        """Send a kernel; two answers come, or one that says why not."""
        assert self._process.stdin is not None
        given = None if passes is self._passes else pickle.dumps(passes)
        try:
            self._process.stdin.write(pickle.dumps((target, given, kernel)))
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerDied(repr(error)) from error
        self._passes = passes

    def answer(self) -> tuple[Any, ...]:
        """The next answer."""
        try:
            said: tuple[Any, ...] = pickle.load(self._answers)
        except Exception as error:  # what is no pickle raises many kinds
            raise WorkerDied(repr(error)) from error
        if said[0] == FAILED:
            self._passes = ()  # which may be what it could not read
        return said

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """End it, whatever it is at."""
        self._process.kill()
        for pipe in (self._process.stdin, self._answers):
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
        self._welcoming = threading.Lock()
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
        self._welcome()
        return any(worker.has_begun and not worker.has_ended for worker in self._all)

    def _welcome(self) -> None:
        """Let those who have said that they are ready have kernels."""
        with self._welcoming:
            for worker in list(self._starting):
                try:
                    if not worker.has_ended and not worker.is_ready():
                        continue
                except WorkerDied:
                    worker.end()
                if not worker.has_ended:
                    self._idle.put(worker)
                self._starting.remove(worker)

    @contextmanager
    def taken(self) -> Generator[Worker]:
        """A worker that no other thread has; one that dies meanwhile does not come back."""
        worker = self._next()
        try:
            yield worker
        except BaseException:
            worker.end()  # what it would answer next is not known
            raise
        self._idle.put(worker)

    def _next(self) -> Worker:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self.are_alive:
            with suppress(queue.Empty):
                worker = self._idle.get(timeout=min(_PATIENCE, _GLANCE))
                if not worker.has_ended:
                    return worker
            self._welcome()
        raise WorkerDied("none is free")

    def end(self) -> None:
        """End all of them."""
        for worker in self._all:
            worker.end()


_pool: list[Workers] = []


def start_workers(cores: int) -> None:
    """Start workers, unless there are some, or too few cores for them: ranks of one machine share its own."""
    cores //= max(1, _number(os.environ.get("LOCAL_WORLD_SIZE", "")))
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)  # and not an application with Python in it
    if cores < _LEAST_CORES or not is_python or (_pool and _pool[0].are_own and _pool[0].are_alive):
        return
    if not _pool:
        atexit.register(end_workers)
    with suppress(OSError):  # a machine that starts no more processes compiles in this one
        _pool[:] = [Workers(min(_MOST, cores - _LEFT))]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 1


def ready_workers() -> Workers | None:
    """The workers of this process, if any of them takes kernels now."""
    return _pool[0] if _pool and _pool[0].are_own and _pool[0].are_ready() else None


def end_workers() -> None:
    """End the workers of this process."""
    for workers in _pool:
        if workers.are_own:
            workers.end()
    _pool.clear()
