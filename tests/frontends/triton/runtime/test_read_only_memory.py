"""Memory that must not be written to: a kernel that does so is refused, one that reads it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import ReadOnlyError
from weft.runtime import writable
from weft.runtime.writable import is_writable

SIZE = 64


@triton.jit
def double(x_ptr, out_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out_ptr + places, tl.load(x_ptr + places) * 2)


@triton.jit
def count(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def through_an_address(x_ptr, out_ptr, BLOCK: tl.constexpr):
    address = out_ptr.to(tl.int64) + 0
    tl.store(address.to(tl.pointer_type(tl.float32)) + tl.arange(0, BLOCK), 1.0)


@triton.jit
def maybe(x_ptr, out_ptr, BLOCK: tl.constexpr, WRITE: tl.constexpr = False):
    places = tl.arange(0, BLOCK)
    if WRITE:
        tl.store(x_ptr + places, 0.0)
    tl.store(out_ptr + places, tl.load(x_ptr + places))


@triton.jit
def of_a_tuple(pair, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(pair[1] + places, tl.load(pair[0] + places))


tuned = triton.autotune([triton.Config({"BLOCK": SIZE}), triton.Config({"BLOCK": SIZE // 2})], key=[])(double)
computed = triton.heuristics({"BLOCK": lambda args: SIZE})(double)


def _locked() -> np.ndarray[Any, Any]:
    array = np.arange(SIZE, dtype=np.float32)
    array.setflags(write=False)
    return array


def _mapped(folder: Path) -> np.ndarray[Any, Any]:
    path = folder / "numbers"
    np.arange(SIZE, dtype=np.float32).tofile(path)
    return np.memmap(path, dtype=np.float32, mode="r")


def _tensor(folder: Path) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once in a process that the array is not writable
        return torch.from_numpy(_mapped(folder))


MEMORY: dict[str, Callable[[Path], Any]] = {
    "an array": lambda folder: _locked(),
    "a view": lambda folder: np.broadcast_to(np.arange(SIZE, dtype=np.float32), (1, SIZE))[0],
    "a file": _mapped,
    "a tensor over a file": _tensor,
}


@pytest.fixture(params=list(MEMORY))
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MEMORY[request.param](tmp_path)


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("kernel", [double, count, through_an_address])
def test_a_kernel_that_writes_it_is_refused(memory: Any, kernel: Any, interpreted: bool) -> None:
    before, x = np.array(np.asarray(memory)), np.ones(SIZE, np.float32)
    writable = np.zeros(SIZE, np.float32)
    with triton.interpret(interpreted):
        kernel[(1,)](x, writable, BLOCK=SIZE)  # what is kept for memory that may be written to is not used
        for _ in range(2):
            with pytest.raises(ReadOnlyError, match="out_ptr|a tensor" if interpreted else "argument out_ptr"):
                kernel[(1,)](x, memory, BLOCK=SIZE)
    assert np.array_equal(np.asarray(memory), before)


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_kernel_that_reads_it_runs(memory: Any, interpreted: bool) -> None:
    out = np.zeros(SIZE, np.float32)
    with triton.interpret(interpreted):
        double[(1,)](memory, out, BLOCK=SIZE)
        assert np.array_equal(out, 2 * np.asarray(memory))
        maybe[(1,)](memory, out, BLOCK=SIZE)
        with pytest.raises(ReadOnlyError, match="x_ptr"):
            maybe[(1,)](memory, out, BLOCK=SIZE, WRITE=True)


@pytest.mark.parametrize("launch", ["run", "warmup", "tuned", "computed", "tuple"])
def test_every_way_to_launch_refuses_it(launch: str) -> None:
    x, out = np.ones(SIZE, np.float32), _locked()
    with pytest.raises(Exception, match="read-only"):
        match launch:
            case "run":
                double.run(x, out, grid=(1,), BLOCK=SIZE)
            case "warmup":
                double.warmup(x, out, grid=(1,), BLOCK=SIZE)
            case "tuned":
                tuned[(1,)](x, out)
            case "computed":
                computed[(1,)](x, out)
            case _:
                of_a_tuple[(1,)]((x, out), BLOCK=SIZE)
    assert np.array_equal(out, np.arange(SIZE))


def test_whether_memory_is_writable_is_known_without_the_advice_of_new_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped, own = _mapped(tmp_path), np.zeros(SIZE)
    for known in (True, False):
        if not known:
            monkeypatch.setattr(writable, "_advise", lambda: None)
        assert not is_writable(mapped.ctypes.data, mapped.nbytes)
        assert is_writable(own.ctypes.data, own.nbytes)
        assert is_writable(0, 0)
