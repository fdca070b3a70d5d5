"""A child process that does risky work on request, and the handle by which the parent drives it.

A back end can abort a process, hang it, or leave a GPU's context beyond repair. So cases run in children; each answer
is one JSON line on a pipe of its own (standard output belongs to whatever the cases print). A child that has died is
started anew with the next request. The other side of the pipe is `serve_requests`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any, Self

from weft.errors import WeftError

START_LIMIT = 300.0  # seconds: loading torch and its database takes five on a quiet machine

Answer = Callable[[dict[str, Any]], None]


class Child:
    """One child process at a time, which runs a module; a context manager that ends the child."""

    def __init__(self, module: str, settings: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._settings = dict(settings)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._answers: IO[str] | None = None
        self._errors: IO[bytes] | None = None
        self._timed_out = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def timed_out(self) -> bool:
        """Whether the last answer did not come in time."""
        return self._timed_out

    def send(self, request: dict[str, Any]) -> None:
        """Ask for something; the child is started if there is none."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: the next read says so, and why
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def receive(self, time_limit: float) -> dict[str, Any] | None:
        """The next answer; None when the child has died, or was ended because the answer did not come in time."""
        assert self._process is not None and self._answers is not None
        self._timed_out = False

        def end(process: subprocess.Popen[str]) -> None:
            self._timed_out = True
            process.kill()

        timer = threading.Timer(time_limit, end, [self._process])
        timer.start()
        try:
            line = self._answers.readline()
        finally:
            timer.cancel()
        return json.loads(line) if line.endswith("\n") else None

    def epitaph(self, time_limit: float) -> str:
        """Why the child ended, with the last line it wrote; the child is gone afterwards."""
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.stop()
        if self._timed_out:
            return f"ended after {time_limit:g} s"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the process ended with {how}" + (f": {lines[-1][:200]}" if lines else "")

    def stop(self) -> None:
        """End the child; the next request starts another."""
        if self._process is None:
            return
        assert self._process.stdin is not None and self._answers is not None and self._errors is not None
        self._process.kill()
        self._process.wait()
        for stream in (self._answers, self._errors):
            stream.close()
        with contextlib.suppress(BrokenPipeError):  # a request that nobody will read any more
            self._process.stdin.close()
        self._process = None

    def _start(self) -> None:
        read_end, write_end = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[write_end],
            text=True,
            env=self._environment,
        )
        os.close(write_end)
        self._answers = os.fdopen(read_end)
        self.send({"settings": self._settings})
        if self.receive(START_LIMIT) is None:
            raise WeftError(f"a child of {self._module} did not start: {self.epitaph(START_LIMIT)}")


def serve_requests(prepare: Callable[[dict[str, Any]], Callable[[dict[str, Any], Answer], None]]) -> None:
    """The child's main loop: `prepare(settings)` gives what answers a request, with as many answers as it likes."""
    with os.fdopen(int(sys.argv[1]), "w") as pipe:

        def answer(record: dict[str, Any]) -> None:
            print(json.dumps(record), file=pipe, flush=True)

        handle = prepare(json.loads(sys.stdin.readline())["settings"])
        answer({"ready": True})
        for line in sys.stdin:
            handle(json.loads(line), answer)
