"""Processes that make PTX of kernels: the same as this one makes, and what they cannot do is done here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from weft.backends.nvidia.compile import KernelHistory, annotate, llvm_of
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.target import target_named
from weft.backends.nvidia.workers import pool
from weft.backends.nvidia.workers.kernel_bytes import from_bytes, to_bytes
from weft.backends.nvidia.workers.pool import Workers
from weft.config import Config
from weft.errors import LoweringError
from weft.ops.base import OpSpec
from weft.pipelines import compile_kernels
from weft.testing.gpu.corpus import generated_ops, op_kernels
from weft.tile.dialect import KernelOp
from weft.tile.text import print_program

TARGET = target_named("sm_90a")
PASSES = nvidia_kernel_passes()
FEW = ("add", "sum", "cumsum", "dot")
LONGEST_START = 60.0


def kernels_named(*names: str) -> dict[str, KernelOp]:
    specs: list[OpSpec] = [spec for spec in generated_ops() if spec.name in names]
    return {name: kernel for spec in specs for name, kernel in list(op_kernels(spec).items())[:3]}


@pytest.fixture(scope="module")
def kernels() -> dict[str, KernelOp]:
    return kernels_named(*FEW)


@pytest.fixture(scope="module")
def started() -> Generator[Workers]:
    """One worker, which takes kernels."""
    workers = ready()
    yield workers
    workers.end()


def ready() -> Workers:
    workers, begin = Workers(1), time.monotonic()
    while not workers.are_ready():
        assert time.monotonic() - begin < LONGEST_START, "the worker does not start"
        time.sleep(0.05)
    return workers


@pytest.fixture
def workers(started: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(pool, "_pool", [started])
    return started


def test_kernels_that_were_bytes_become_the_same_code(kernels: dict[str, KernelOp]) -> None:
    for kernel in kernels.values():
        again = from_bytes(to_bytes(kernel))
        assert print_program(again) == print_program(kernel)
        (annotated, launch), (same, other) = (annotate(each, TARGET, PASSES) for each in (kernel, again))
        assert launch == other and llvm_of(annotated, launch, TARGET) == llvm_of(same, other, TARGET)


def test_workers_make_the_same_code_and_say_what_came_of_passes(
    kernels: dict[str, KernelOp], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    ask = pool.Worker.ask
    monkeypatch.setattr(pool.Worker, "ask", lambda self, *given: (asked.append(given[0]), ask(self, *given)))
    beside, loaded = KernelHistory(), dict[str, Any]()
    code = compile_kernels(kernels, TARGET, beside, lambda name, ptx, launch: loaded.update({name: (ptx, launch)}))
    made = dict(code.modules)
    assert len(asked) == len(kernels)
    monkeypatch.setattr(pool, "_pool", [])
    here = KernelHistory()
    alone = compile_kernels(kernels, TARGET, here)
    assert made == dict(alone.modules) and code.launches == alone.launches and beside.notes == here.notes
    assert len(asked) == len(kernels)


def test_kernels_whose_passes_are_kept_are_compiled_here(kernels: dict[str, KernelOp], workers: Workers) -> None:
    history = KernelHistory(keeps_kernels=True)
    compile_kernels(kernels, TARGET, history)
    assert history.annotated.keys() == kernels.keys()


def test_what_a_worker_refuses_is_an_error_with_the_kernels_name(
    kernels: dict[str, KernelOp], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = lambda self: (pool.REFUSED, "too large", "make it smaller")  # noqa: E731
    monkeypatch.setattr(pool.Worker, "answer", refusing)
    monkeypatch.setattr(pool.Worker, "ask", lambda *given: None)
    with pytest.raises(LoweringError, match="too large"):
        compile_kernels(kernels, TARGET)


def test_what_fails_in_a_worker_is_done_here(
    kernels: dict[str, KernelOp], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.backends.nvidia.compile.to_bytes", lambda kernel: b"no kernel")
    assert all(compile_kernels(kernels, TARGET).modules.values())


def test_a_worker_that_dies_is_done_without(kernels: dict[str, KernelOp], monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ready()
    monkeypatch.setattr(pool, "_pool", [workers])
    monkeypatch.setattr(pool, "_PATIENCE", 0.1)
    monkeypatch.setattr(pool.Worker, "has_ended", False)
    workers.end()
    assert all(compile_kernels(kernels, TARGET).modules.values())


def test_a_worker_that_dies_over_a_kernel_is_done_without(
    kernels: dict[str, KernelOp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said how the kernel is launched, and ends before there is PTX."""
    wanted = compile_kernels(kernels, TARGET)
    monkeypatch.setattr(pool, "_pool", [ready()])
    monkeypatch.setattr(pool, "_PATIENCE", 0.5)
    answer = pool.Worker.answer

    def dying(worker: pool.Worker) -> tuple[Any, ...]:
        said = answer(worker)
        if said[0] == pool.PTX:
            raise pool.WorkerDied("killed")
        return said

    monkeypatch.setattr(pool.Worker, "answer", dying)
    made = compile_kernels(kernels, TARGET)
    assert dict(made.modules) == dict(wanted.modules) and made.launches == wanted.launches


def test_one_that_fails_to_start_keeps_nobody_waiting(
    kernels: dict[str, KernelOp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other is ready later, or never: kernels are not sent while nobody takes them."""
    workers = Workers(2)
    for worker in workers._all:  # pyright: ignore[reportPrivateUsage]
        worker.end()
    monkeypatch.setattr(pool, "_pool", [workers])
    assert not workers.are_ready() and pool.ready_workers() is None
    begin = time.monotonic()
    with pytest.raises(pool.WorkerDied), workers.taken():
        pass
    assert time.monotonic() - begin < 10


def test_what_code_prints_while_it_starts_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('Loading site')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), tmp_path, *sys.path])
    ready().end()


def test_applications_with_python_in_them_start_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_pool", [])
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    pool.start_workers(16)
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    pool.start_workers(16)
    assert pool.ready_workers() is None and not pool._pool  # pyright: ignore[reportPrivateUsage]


def test_few_cores_and_forks_have_no_workers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool.ready_workers() is workers
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert pool.ready_workers() is None
    monkeypatch.undo()
    monkeypatch.setattr(pool, "_pool", [])
    pool.start_workers(3)
    assert pool.ready_workers() is None


def test_workers_change_no_code() -> None:
    assert Config(workers=False).key() == Config().key()
