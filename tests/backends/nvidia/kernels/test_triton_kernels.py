"""Kernels that people write, compiled for a GPU: run by the PTX machine they give what NumPy gives, and ptxas takes
them. LLVM ends the process on what it cannot select, so random programs are assembled in a child process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.nvidia.ir.dialect import WARPS, set_integer
from weft.backends.nvidia.target import target_named
from weft.frontends.triton.errors import DeviceAssertError
from weft.pipelines import compile_kernels

from ..ptxas import assemble, needs_ptxas

HERE = Path(__file__).parents[1]
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "frontends" / "triton")]
import test_random_programs as programs  # noqa: E402
from emulation import compile_like, emulate  # noqa: E402
from ptx_machine import MachineError, Memory, run_blocks  # noqa: E402

RANDOM = np.random.default_rng(7)


class Program(programs.Program):
    """Programs without products of matrices."""

    def dot(self, depth: int) -> None:
        return


def random_code(seed: int, arch: str) -> Any:
    name = f"random{seed}"
    kernel, _ = programs.build_kernel(lambda b, h: Program(b, seed, h).run(12), programs.ARGUMENTS, name)
    set_integer(kernel, WARPS, random.Random(seed).choice([1, 2, 4]))
    return name, compile_kernels({name: kernel}, target_named(arch))


@pytest.mark.parametrize("chunk", range(8))
def test_random_programs_give_what_numpy_gives(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "Program", Program)
    for seed in range(4 * chunk, 4 * (chunk + 1)):
        floats, integers, expected = programs.interpreted(seed, 12)
        name, code = random_code(seed, "sm_90a")
        memory, result = Memory(), np.full(programs.SIZE, 7, np.float32)
        arrays = (floats, integers, result, np.zeros(programs.SIZE, np.float32), np.zeros(1, np.int64))
        places = [memory.add(array) for array in arrays]
        launch, count = code.launches[name], programs.PROGRAMS
        words = [*places[:4], programs.SIZE, places[4], 1, 1, count]
        run_blocks(code.ptx, name, launch.threads, launch.shared, memory, words, count)
        found = memory.read(places[2], result)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}")


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_random_programs_assemble_and_abort_nothing(arch: str, tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {[str(HERE.parents[2]), *sys.path]!r}
from tests.backends.nvidia.kernels.test_triton_kernels import random_code
for seed in range(1000, 1030):
    open({str(tmp_path)!r} + f"/{{seed}}.ptx", "w").write(random_code(seed, {arch!r})[1].ptx)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    for path in sorted(tmp_path.glob("*.ptx")):
        assembly = assemble(path.read_text(), arch)
        assert not assembly.error, f"{path.name}: {assembly.error}"
        assert all(kernel.spilled == 0 for kernel in assembly.kernels.values()), path.name


# -- one op at a time ------------------------------------------------------------------------------------------------


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


def test_neighbours_are_moved_sixteen_bytes_at_a_time() -> None:
    x = np.zeros(4096, np.float16)
    ptx = compile_like(add, (x, x, x, 4096), {"BLOCK": 1024}, "sm_90a").code.ptx
    assert ptx.count("ld.global.v4.b32") == 2 and ptx.count("st.global.v4.b32") == 1


def test_a_size_that_is_no_multiple_is_masked_element_by_element() -> None:
    x = np.zeros(4096, np.float32)
    ptx = compile_like(add, (x, x, x, 4095), {"BLOCK": 1024}, "sm_90a").code.ptx
    assert ".v4." not in ptx and ".v2." not in ptx


def test_the_number_of_warps_is_the_authors() -> None:
    x = np.zeros(4096, np.float32)
    code = compile_like(add, (x, x, x, 4096), {"BLOCK": 1024, "num_warps": 8}, "sm_90a")
    assert code.code.launches["add"].threads == 256


@triton.jit
def transpose(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(out + n[None, :] * M + m[:, None], tl.load(x + m[:, None] * N + n[None, :]))


def test_a_transpose_reads_and_writes_in_vectors() -> None:
    x, out = RANDOM.standard_normal((64, 96)).astype(np.float32), np.zeros((96, 64), np.float32)
    emulate(transpose, x, out, 64, 96, BM=32, BN=32, grid=(2, 3))
    np.testing.assert_array_equal(out, x.T)
    ptx = compile_like(transpose, (x, out, 64, 96), {"BM": 32, "BN": 32}, "sm_90a").code.ptx
    assert "ld.global.v4" in ptx and "st.global.v4" in ptx


@triton.jit
def scan(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    places = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + places, tl.cumsum(tl.load(x + places), AXIS, reverse=REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((1, 1024), 1), ((8, 64), 1), ((64, 8), 0), ((2, 256), 1), ((256, 2), 0)])
@pytest.mark.parametrize("warps", [1, 4])
def test_sums_up_to_each_element(shape: tuple[int, int], axis: int, reverse: bool, warps: int) -> None:
    x, out = RANDOM.integers(-9, 9, shape).astype(np.int32), np.zeros(shape, np.int32)
    emulate(scan, x, out, *shape, axis, reverse, num_warps=warps)
    turned = np.flip(x, axis) if reverse else x
    expected = np.cumsum(turned, axis)
    np.testing.assert_array_equal(out, np.flip(expected, axis) if reverse else expected)


@triton.jit
def last_of_two(a_value, a_flag, b_value, b_flag):
    return tl.where(b_flag != 0, b_value, a_value), a_flag | b_flag


@triton.jit
def last_flagged(x, flags, out, N: tl.constexpr):
    places = tl.arange(0, N)
    value, _ = tl.reduce((tl.load(x + places), tl.load(flags + places)), 0, last_of_two)
    tl.store(out, value)


@pytest.mark.parametrize("size", [32, 512])
def test_a_fold_keeps_the_order_of_elements(size: int) -> None:
    x, flags = RANDOM.integers(0, 1000, size).astype(np.int32), RANDOM.integers(0, 2, size).astype(np.int32)
    out = np.zeros(1, np.int32)
    emulate(last_flagged, x, flags, out, size)
    assert out[0] == x[np.flatnonzero(flags)[-1]]


@triton.jit
def order(x, out, M: tl.constexpr, N: tl.constexpr, DOWN: tl.constexpr):
    places = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + places, tl.sort(tl.load(x + places), descending=DOWN))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.float16, np.int64])
@pytest.mark.parametrize(("shape", "down"), [((1, 512), False), ((4, 64), True), ((16, 8), False)])
def test_sorting(shape: tuple[int, int], down: bool, dtype: Any) -> None:
    x = (RANDOM.standard_normal(shape) * 50).astype(dtype)
    out = np.zeros_like(x)
    emulate(order, x, out, *shape, down)
    expected = np.sort(x, 1)
    np.testing.assert_array_equal(out, expected[:, ::-1] if down else expected)


@triton.jit
def update(x, places, out, old, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    at, value, mask = tl.load(places + i), tl.load(x + i), i % 3 != 0
    if KIND == "add":
        found = tl.atomic_add(out + at, value, mask=mask)
    elif KIND == "max":
        found = tl.atomic_max(out + at, value, mask=mask)
    else:
        found = tl.atomic_xchg(out + at, value, mask=mask)
    tl.store(old + i, found, mask=mask)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(("add", dtype) for dtype in (np.int32, np.float32, np.float16, np.float64)),
        *(("max", dtype) for dtype in (np.uint32, np.float32, np.int64)),
        ("xchg", np.float32),
    ],
)
def test_atomic_updates(kind: str, dtype: Any, arch: str) -> None:
    size = 64
    x, places = RANDOM.integers(0, 50, size).astype(dtype), RANDOM.permutation(size).astype(np.int32)
    if kind != "xchg":
        places %= 16  # several elements meet
    out, old = np.full(size, 3, dtype), np.zeros(size, dtype)
    mask = np.arange(size) % 3 != 0
    expected = out.copy()
    ufunc = {"add": np.add, "max": np.maximum}.get(kind)
    if ufunc is not None:
        ufunc.at(expected, places[mask], x[mask])
    else:
        expected[places[mask]] = x[mask]
    emulate(update, x, places, out, old, kind, size, arch=arch)
    np.testing.assert_array_equal(out, expected)
    assert (old[mask] != 0).all() and not old[~mask].any()


@triton.jit
def claim(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.atomic_cas(out + i, tl.full([N], 0, x.dtype.element_ty), tl.load(x + i)))


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.int64])
def test_exchanges_touch_no_more_than_their_element(dtype: Any) -> None:
    x, out = np.arange(1, 2).astype(dtype), np.zeros(1, dtype)
    emulate(claim, x, out, 1)
    assert (x[0], out[0]) == (0, 1)


@triton.jit
def ping_pong(lock, count, N: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    i = tl.arange(0, N)
    tl.store(count + i, tl.load(count + i) + 1)
    tl.atomic_xchg(lock, 0)


def test_a_lock_is_taken_by_one_thread_for_all() -> None:
    lock, count = np.zeros(1, np.int32), np.zeros(64, np.int32)
    emulate(ping_pong, lock, count, 64, grid=(5,))
    assert (count == 5).all() and lock[0] == 0


@triton.jit
def wait_for(flag, x, out, N: tl.constexpr):
    while tl.load(flag) == 0:
        tl.store(flag, 1)
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))


def test_a_scalar_that_is_waited_for_is_read_by_one_thread() -> None:
    x, out = RANDOM.integers(0, 99, 64).astype(np.int32), np.zeros(64, np.int32)
    emulate(wait_for, np.zeros(1, np.int32), x, out, 64)
    np.testing.assert_array_equal(out, x)


@triton.jit
def counts(x, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


def test_counting_numbers() -> None:
    x, out = RANDOM.integers(0, 32, 256).astype(np.int32), np.zeros(32, np.int32)
    emulate(counts, x, out, 256, 32)
    np.testing.assert_array_equal(out, np.bincount(x, minlength=32))


@triton.jit
def checked(x, N: tl.constexpr):
    tl.device_assert(tl.load(x + tl.arange(0, N)) < 5, "too large")


def test_a_condition_that_does_not_hold_is_noted() -> None:
    x = np.zeros(64, np.int32)
    emulate(checked, x, 64, debug=True)
    x[33] = 7
    with pytest.raises(DeviceAssertError, match="too large"):
        emulate(checked, x, 64, debug=True)


@triton.jit
def printed(x, N: tl.constexpr):
    tl.device_print("x", tl.load(x + tl.arange(0, N)))


def test_values_are_printed_by_the_driver() -> None:
    assert "vprintf" in compile_like(printed, (np.zeros(32, np.float32),), {"N": 32}, "sm_90a").code.ptx


@triton.jit
def passed_on(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))
    tl.store(out + N + i, tl.load(out + (N - 1 - i)))


def test_what_one_thread_writes_another_reads_behind_a_barrier() -> None:
    x, out = RANDOM.integers(0, 99, 128).astype(np.int32), np.zeros(256, np.int32)
    emulate(passed_on, x, out, 128)
    np.testing.assert_array_equal(out, [*x, *x[::-1]])


def test_the_machine_sees_races() -> None:
    x, out = np.zeros(128, np.int32), np.zeros(256, np.int32)
    code = compile_like(passed_on, (x, out), {"N": 128}, "sm_90a")
    memory = Memory()
    words = [memory.add(x), memory.add(out), memory.add(np.zeros(1, np.int64)), 1, 1, 1]
    ptx = code.code.ptx.replace("bar.sync 0;", "")
    with pytest.raises(MachineError, match="race in global memory"):
        run_blocks(ptx, code.name, 128, code.code.launches[code.name].shared, memory, words, 1)


@triton.jit
def highest(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = -tl.load(x + i)
    tl.store(out + i, tl.maximum(tl.maximum(tl.maximum(value * 0, value), value + 1), value + 2))


def test_a_maximum_with_zero_is_part_of_the_one_before_it() -> None:
    """LLVM makes `max.relu` of it."""
    x, out = np.arange(-64, 64, dtype=np.int32), np.zeros(128, np.int32)
    emulate(highest, x, out, N=128)
    np.testing.assert_array_equal(out, np.maximum(2 - x, 0))
