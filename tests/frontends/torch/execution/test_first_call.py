"""The first call of a graph waits for its kernels, and for another graph if they cannot be loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from weft.errors import CompilationError
from weft.forks import BACKGROUND
from weft.frontends.torch import backend
from weft.frontends.torch.execution.first_call import FirstCall, Loading
from weft.runtime.record import CompilationRecord


def doubled(arguments: list[Any]) -> Sequence[Any]:
    return [arguments[0] * 2]


def first_call(*failures: Exception) -> tuple[FirstCall, list[Exception], CompilationRecord]:
    """A call that is loaded after so many failures, with those that are left."""
    left, record = list(failures), CompilationRecord("g")

    def load() -> Any:
        if left:
            raise left.pop(0)
        return doubled

    def otherwise(error: Exception) -> Any:
        return backend._uncompiled(fx.symbolic_trace(lambda x: (x * 3,)), record, error)

    return FirstCall(Loading(load, otherwise, record)), left, record


def test_it_loads_once_and_says_how_long_it_waited() -> None:
    call, _, record = first_call()
    assert [call([2]), call([3])] == [[4], [6]]
    assert call.loading is None and record.seconds.keys() == {"first_call"}


def test_what_the_driver_refuses_torch_runs(caplog: pytest.LogCaptureFixture) -> None:
    call, _, record = first_call(CompilationError("no such instruction"))
    assert [call([torch.tensor(2)]), call([torch.tensor(3)])] == [(6,), (9,)]
    assert record.source == "torch" and "no such instruction" in caplog.text


def test_without_memory_the_next_call_tries_again() -> None:
    call, _, _ = first_call(torch.OutOfMemoryError("no memory"))
    with pytest.raises(torch.OutOfMemoryError):
        call([2])
    assert call([2]) == [4]


class Work:
    """Work in the background, which a fork waits for."""

    waited = 0

    def wait(self) -> None:
        self.waited += 1


def test_a_fork_waits_for_kernels_that_are_compiled() -> None:
    work = Work()
    BACKGROUND.add(work)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert work.waited == 1
