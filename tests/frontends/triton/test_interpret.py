"""Interpreted kernels: right results, and what is wrong with an access told with its tensor, index and program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.builders import uninitialised
from weft.frontends.triton.errors import DeviceAssertError, KernelError, MemoryAccessError, RaceError
from weft.frontends.triton.runtime.interpret_launch import interpret_launch


def launch(kernel: Callable[..., Any], grid: tuple[int, ...], *args: Any, **keywords: Any) -> None:
    bound = inspect.signature(kernel).bind(*args, **keywords)
    constants = {name for name in bound.arguments if name.isupper()}
    interpret_launch(kernel, grid, bound.arguments, constants)


def copy(source: Any, target: Any, n: Any, BLOCK: Any) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets), mask=offsets < n)


def write_first(target: Any) -> None:
    tl.store(target, tl.program_id(0).to(tl.float32))


def add_under_lock(target: Any, lock: Any) -> None:
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(target, tl.load(target) + 1.0)
    tl.atomic_xchg(lock, 0)


def windowed(source: Any, target: Any, rows: Any, columns: Any, BM: Any, BN: Any) -> None:
    window = tl.make_block_ptr(source, (rows, columns), (columns, 1), (0, 0), (BM, BN), (1, 0))
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, tl.cdiv(columns, BN)):
        total += tl.load(window, boundary_check=(0, 1), padding_option="zero")
        window = tl.advance(window, (0, BN))
    tl.store(target + tl.arange(0, BM), tl.sum(total, 1), mask=tl.arange(0, BM) < rows)


def described(source: Any, target: Any, rows: Any, columns: Any, BM: Any, BN: Any) -> None:
    first = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [BM, BN])
    second = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [BM, BN])
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    second.store(at, first.load(at) * 2.0)


def checked(source: Any, BLOCK: Any) -> None:
    tl.device_assert(tl.load(source + tl.arange(0, BLOCK)) > 0, "all are positive")


def through_addresses(addresses: Any, target: Any, BLOCK: Any) -> None:
    source = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(target + tl.arange(0, BLOCK), tl.load(source + tl.arange(0, BLOCK)))


def count(values: Any, counts: Any, BLOCK: Any) -> None:
    tl.atomic_add(counts + tl.load(values + tl.arange(0, BLOCK)), 1)


def shout(values: Any, BLOCK: Any) -> None:
    tl.device_print("value", tl.load(values + tl.arange(0, BLOCK)))


def test_out_of_bounds_names_tensor_index_and_program() -> None:
    source, target = torch.rand(100), torch.zeros(100)
    with pytest.raises(MemoryAccessError, match=r"load of `source` at index 100 .*program \(1, 0, 0\)") as caught:
        launch(copy, (2,), source, target, 100, 64)
    assert caught.value.frames[0].function == "copy"
    assert "tl.load(source + offsets)" in caught.value.frames[0].text


def test_arrays_of_numpy_are_tensors_too() -> None:
    source, target = np.random.default_rng(0).random(64).astype(np.float32), np.zeros(64, np.float32)
    launch(copy, (1,), source, target, 64, 64)
    np.testing.assert_array_equal(source, target)


def test_reads_of_uninitialised_memory() -> None:
    with uninitialised.watching():
        source = torch.empty(64)
        filled = torch.empty(64)
        filled.copy_(torch.rand(64))
    target = torch.zeros(64)
    launch(copy, (1,), filled, target, 64, 64)
    with pytest.raises(MemoryAccessError, match="uninitialised memory: `source` at index 0"):
        launch(copy, (1,), source, target, 64, 64)
    source[:60] = 1.0
    with pytest.raises(MemoryAccessError, match="uninitialised memory: `source` at index 60"):
        launch(copy, (1,), source, target, 64, 64)


def test_two_programs_that_write_to_one_place() -> None:
    with pytest.raises(
        RaceError, match=r"program \(0, 0, 0\) and program \(1, 0, 0\) both write to `target` at index 0"
    ):
        launch(write_first, (2,), torch.zeros(4))


def test_a_lock_orders_programs() -> None:
    target, lock = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    launch(add_under_lock, (5,), target, lock)
    assert target.item() == 5


def test_block_pointers_and_descriptors() -> None:
    source, target = torch.rand(5, 70), torch.zeros(5)
    launch(windowed, (1,), source, target, 5, 70, 8, 16)
    torch.testing.assert_close(target, source.sum(1))
    doubled = torch.zeros(5, 70)
    launch(described, (2, 5), source, doubled, 5, 70, 4, 16)
    torch.testing.assert_close(doubled, source * 2)


def test_device_assert_stops_with_its_message() -> None:
    with pytest.raises(DeviceAssertError, match="all are positive"):
        launch(checked, (1,), torch.tensor([1.0, -1.0]), 2)
    launch(checked, (1,), torch.tensor([1.0, 2.0]), 2)


def test_pointers_from_integers_find_their_tensor() -> None:
    source, target = torch.rand(8), torch.zeros(8)
    launch(through_addresses, (1,), torch.tensor([source.data_ptr()]), target, 8)
    assert torch.equal(source, target)
    with pytest.raises(MemoryAccessError, match="belongs to no tensor"):
        launch(through_addresses, (1,), torch.tensor([16]), target, 8)


def test_tensors_without_memory_are_passed_over_in_the_search() -> None:
    source, target = torch.rand(8), torch.zeros(8)
    others = [source.to_sparse(), torch._to_functional_tensor(source)]
    torch.func.grad(lambda x: others.append(x) or x.sum())(source)
    launch(through_addresses, (1,), torch.tensor([source.data_ptr()]), target, 8)
    assert torch.equal(source, target)


def test_atomics_count_every_lane() -> None:
    values = torch.tensor([0, 1, 1, 3, 1, 0, 0, 0])
    counts = torch.zeros(4, dtype=torch.int32)
    launch(count, (3,), values, counts, 8)
    assert counts.tolist() == [12, 9, 0, 3]


def test_device_print(capsys: pytest.CaptureFixture[str]) -> None:
    launch(shout, (1,), torch.tensor([7, 8]), 2)
    assert capsys.readouterr().out.splitlines() == ["pid (0, 0, 0) idx (0) value: 7", "pid (0, 0, 0) idx (1) value: 8"]


def test_a_tile_is_no_condition() -> None:
    def branch(values: Any, BLOCK: Any) -> None:
        if tl.load(values + tl.arange(0, BLOCK)) > 0:
            pass

    with pytest.raises(KernelError, match="cannot serve as a Python bool"):
        launch(branch, (1,), torch.rand(4), 4)


def test_interpret_watches_what_torch_makes_and_can_allow_races() -> None:
    with triton.interpret():
        source = torch.empty(64)
        with pytest.raises(MemoryAccessError, match="uninitialised"):
            launch(copy, (1,), source, torch.zeros(64), 64, 64)
        with pytest.raises(RaceError):
            launch(write_first, (2,), torch.zeros(4))
    with triton.interpret(races=False):
        launch(write_first, (2,), torch.zeros(4))


@triton.jit
def pass_on(x):
    number = tl.program_id(0)
    tl.store(x + number + 1, tl.load(x + number) + 1)


@triton.jit
def shift_down(x):
    number = tl.program_id(0)
    tl.store(x + number, tl.load(x + number + 1))


@triton.jit
def read_first_of_all(x, out):
    number = tl.program_id(0)
    first = tl.load(x)
    tl.store(out + number, first)
    tl.store(x + number, first, mask=number == 2)


def test_a_program_that_reads_what_another_wrote() -> None:
    with pytest.raises(RaceError, match=r"program \(1, 0, 0\) reads what program \(0, 0, 0\) wrote to `x` at index 1"):
        launch(pass_on.fn, (3,), torch.zeros(4))


def test_a_program_that_writes_what_another_read() -> None:
    with pytest.raises(RaceError, match=r"program \(1, 0, 0\) writes what program \(0, 0, 0\) read of `x` at index 1"):
        launch(shift_down.fn, (3,), torch.zeros(4))
    launch(read_first_of_all.fn, (3,), torch.zeros(4), torch.zeros(4))  # what all read, nobody writes
    with triton.interpret(races=False):
        shift_down[(3,)](torch.zeros(4))


@triton.jit
def show(x):
    values = tl.load(x + tl.arange(0, 4))
    print(values)
    print(f"{values.dtype}")


def test_print_shows_values(capsys: pytest.CaptureFixture[str]) -> None:
    with triton.interpret():
        show[(1,)](torch.arange(4.0))
    assert capsys.readouterr().out == "fp32[4]([0. 1. 2. 3.])\nfp32\n"


@triton.jit
def truncate(x, out):
    r = tl.arange(0, 4)
    tl.store(out + r, tl.load(x + r).to(tl.float8e4nv, fp_downcast_rounding="rtz").to(tl.float32))


def test_what_is_too_large_becomes_the_largest() -> None:
    x, compiled, interpreted = torch.tensor([1000.0, -460.0, 0.3, 449.0]), torch.zeros(4), torch.zeros(4)
    truncate[(1,)](x, compiled)
    with triton.interpret():
        truncate[(1,)](x, interpreted)
    assert compiled.tolist() == interpreted.tolist() == [448.0, -448.0, 0.28125, 448.0]
