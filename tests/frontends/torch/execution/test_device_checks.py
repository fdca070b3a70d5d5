"""Mistakes in a GPU's data, found by its kernels without a GPU: on the interpreter, and as blocks of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.config import Config
from weft.errors import PlaceError, WeftError
from weft.frontends.torch.execution.device_checks import Watch, raise_found, warn_at_exit
from weft.frontends.torch.importer.checks import LEAST_CALLS, Check, are_checked
from weft.lower.machine import gpu_machine
from weft.testing.interpreted import GpuInterpreter

X = torch.arange(12.0).reshape(4, 3)
at = torch.tensor

PLACES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, Tensor]] = {
    "embedding": (lambda i: F.embedding(i, X), at([0, 3]), at([0, 4])),
    "index": (lambda i: X[i], at([-4, 3]), at([-5])),
    "gather": (lambda i: X.gather(1, i), at([[2], [0]]), at([[3], [0]])),
    "index_put": (lambda i: X.index_put((i,), X[0]), at([-1, 2]), at([7])),
}


def on_gpu(function: Callable[..., Tensor], device_checks: str, *, simulated: bool = False) -> Callable[..., Tensor]:
    torch.compiler.reset()
    return torch.compile(function, backend=GpuInterpreter(gpu_machine(), [], device_checks, simulated))


@pytest.mark.parametrize("name", PLACES)
def test_a_call_that_waits_raises_its_own_error(name: str) -> None:
    function, good, bad = PLACES[name]
    run = on_gpu(function, "wait", simulated=True)
    torch.testing.assert_close(run(good), function(good))
    with pytest.raises(PlaceError, match=rf"{name}: an index is out of range.*\n.*test_device_checks.py:\d+"):
        run(bad)
    torch.testing.assert_close(run(good), function(good))


def test_otherwise_the_next_call_does() -> None:
    run = on_gpu(lambda i: X[i] * 2, "on")
    run(at([1]))
    found = run(at([4]))  # the nearest row takes its place
    torch.testing.assert_close(found, X[3:] * 2)
    with pytest.raises(PlaceError, match=r"index: an index is out of range for dimension 0, of size 4"):
        run(at([1]))
    torch.testing.assert_close(run(at([1])), X[1:2] * 2)


def test_another_program_may_be_the_one_that_raises() -> None:
    first, second = on_gpu(lambda i: X[i] * 2, "on"), on_gpu(lambda i: X[i] * 3, "on")
    second(at([1]))
    first(at([4]))
    with pytest.raises(PlaceError):
        second(at([1]))
    raise_found()


def test_small_graphs_are_not_checked_unless_asked() -> None:
    run = on_gpu(lambda i: X[i] * 2, "auto")
    for _ in range(2):
        torch.testing.assert_close(run(at([4])), X[3:] * 2)
    assert not are_checked(Config(device_checks="auto"), LEAST_CALLS - 1)
    assert are_checked(Config(device_checks="auto"), LEAST_CALLS)
    assert are_checked(Config(device_checks="wait"), 1)
    assert not are_checked(Config(device_checks="off"), LEAST_CALLS)
    with pytest.raises(WeftError, match="none of 'auto'"):
        Config(device_checks="sometimes")


def test_verdicts_are_kept_until_someone_looks() -> None:
    watch = Watch([Check("place", "one", "a.py:1"), Check("division", "two", "a.py:2")])
    with torch.inference_mode():
        watch.note(at(0))
    for code in (2, 0, 1):
        watch.note(at(code))
    with pytest.raises(WeftError, match=r"two\n.*a.py:2"):
        raise_found()
    raise_found()


def test_what_nobody_looked_at_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch([Check("place", "index: an index is out of range", "a.py:1")])
    watch.note(at(1))
    warn_at_exit()
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        (
            "weft.data",
            "weft: a.py:1: a program on the GPU has met wrong data, and no later call could raise it, "
            "index: an index is out of range",
        )
    ]
    watch.take()
