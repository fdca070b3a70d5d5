"""The child process of a conformance run, and the handle by which the parent drives it.

A back end can abort a process or hang it. So cases run in children; each verdict is one JSON line on a pipe of its own
(standard output belongs to whatever the operators print). When a child dies, the case it was at gets the blame, and a
new child goes on with the next.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import IO, Any, Self

from weft.errors import WeftError
from weft.testing.opinfo_cases import CaseResult, CaseSettings, Unit

START_LIMIT = 300.0  # seconds: loading torch and its database takes five on a quiet machine


class OpinfoWorker:
    """One child process at a time, which judges a unit on request; a context manager that ends the child."""

    def __init__(self, settings: CaseSettings, time_limit: float) -> None:
        self._settings = settings
        self._time_limit = time_limit
        self._process: subprocess.Popen[str] | None = None
        self._answers: IO[str] | None = None
        self._errors: IO[bytes] | None = None
        self._timed_out = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def units(self, dtypes: tuple[str, ...], names: tuple[str, ...] | None) -> list[Unit]:
        """The operators to run: only the child loads PyTorch's database, which takes seconds."""
        self._send({"units": [dtypes, names]})
        answer = self._receive(START_LIMIT)
        if answer is None:
            raise WeftError(f"the operators of PyTorch's database could not be listed: {self._epitaph(START_LIMIT)}")
        return [Unit(**unit) for unit in answer["units"]]

    def names(self) -> list[str]:
        """The names that operators go by."""
        self._send({"names": True})
        answer = self._receive(START_LIMIT)
        if answer is None:
            raise WeftError(f"the operators of PyTorch's database could not be listed: {self._epitaph(START_LIMIT)}")
        return answer["names"]

    def judge(self, unit: Unit) -> Iterator[CaseResult]:
        """The verdicts on a unit's samples, as they come; a sample that ends the process is an error."""
        first = 0
        while first < self._settings.samples:
            self._send({"unit": asdict(unit), "first": first})
            while (answer := self._receive(self._time_limit)) is not None:
                if "done" in answer:
                    return
                yield (result := CaseResult.from_json(answer))
                first = result.sample + 1
            yield CaseResult(unit.op, unit.dtype, first, "error", self._epitaph(self._time_limit))
            first += 1

    def _send(self, request: dict[str, Any]) -> None:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: the next read says so, and why
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def _receive(self, time_limit: float) -> dict[str, Any] | None:
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

    def _start(self) -> None:
        read_end, write_end = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft.testing.opinfo_worker", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[write_end],
            text=True,
        )
        os.close(write_end)
        self._answers = os.fdopen(read_end)
        self._send({"settings": asdict(self._settings)})
        if self._receive(START_LIMIT) is None:
            raise WeftError(f"a worker of the conformance run did not start: {self._epitaph(START_LIMIT)}")

    def _epitaph(self, time_limit: float) -> str:
        """Why the child ended, with the last line it wrote; the child is gone afterwards."""
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self._stop()
        if self._timed_out:
            return f"ended after {time_limit:g} s"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the process ended with {how}" + (f": {lines[-1][:200]}" if lines else "")

    def _stop(self) -> None:
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


def operator_names(operators: Sequence[Any]) -> list[str]:
    """The names of operators, with and without their variants."""
    return sorted({name for op in operators for name in (op.name, op.formatted_name)})


def serve(answers: IO[str]) -> None:
    """Answer requests from standard input until it ends."""
    import torch

    from weft.testing import opinfo_cases

    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    settings = CaseSettings(**json.loads(sys.stdin.readline())["settings"])

    def answer(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=answers, flush=True)

    opinfo_cases.operators()
    opinfo_cases.identity_backend()
    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if "names" in request:
            answer({"names": operator_names(opinfo_cases.operators())})
            continue
        if "units" in request:
            dtypes, names = request["units"]
            answer({"units": [asdict(unit) for unit in opinfo_cases.units(dtypes, names)]})
            continue
        for result in opinfo_cases.judge_unit(Unit(**request["unit"]), settings, request["first"]):
            answer(result.to_json())
        answer({"done": True})


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "w") as pipe:
        serve(pipe)
