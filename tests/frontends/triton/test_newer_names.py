"""Names of Triton's that kernels of today use: shapes, values that programs meet by, warps, ragged descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import WeftError
from weft.frontends.triton.errors import KernelError
from weft.triton.language.extra import cuda
from weft.triton.tools.ragged_tma import (
    atomic_add_ragged,
    create_ragged_descriptor,
    load_ragged,
    store_ragged,
)

Run = Callable[..., None]


@triton.jit
def shaped(x_ptr, out_ptr):
    row = tl.unsqueeze(tl.load(x_ptr + tl.arange(0, 8)), 0)
    tl.static_assert(row.shape[0] == 1 and row.shape[1] == 8)
    back = tl.squeeze(row, -2) + tl.squeeze(row.unsqueeze(-1), 2).squeeze(0)
    tl.store(out_ptr + tl.arange(0, 8), back + tl.to_tensor(1.5))


def test_sides_of_length_one_come_and_go(run: Run) -> None:
    x, out = np.random.rand(8).astype(np.float32), np.zeros(8, np.float32)
    run(shaped, x, out)
    np.testing.assert_allclose(out, 2 * x + 1.5, rtol=1e-6)


@triton.jit
def squeezed(x_ptr):
    tl.store(x_ptr, tl.sum(tl.squeeze(tl.load(x_ptr + tl.arange(0, 8)), 0)))


def test_a_longer_side_is_not_squeezed() -> None:
    with pytest.raises(WeftError, match="length 1"):
        squeezed[(1,)](torch.zeros(8))


@triton.jit
def meeting(flags_ptr, floats_ptr, out_ptr):
    places = tl.arange(0, 4)
    tl.atomic_store(flags_ptr + places, places + 3)
    tl.atomic_store(floats_ptr + places, -0.0, mask=places < 2)
    tl.store(out_ptr + places, tl.atomic_load(flags_ptr + places))
    tl.store(out_ptr + 4 + places, tl.atomic_load(floats_ptr + places, sem="relaxed").to(tl.int32, bitcast=True))
    tl.store(out_ptr + 8, tl.atomic_poll(flags_ptr + 1, 4).to(tl.int32))
    tl.store(out_ptr + 9, tl.atomic_poll(flags_ptr + 1, 5, timeout_ns=1000).to(tl.int32))


def test_atomic_loads_and_stores_change_nothing_else(run: Run) -> None:
    flags, floats, out = np.zeros(4, np.int32), np.full(4, 2.0, np.float32), np.zeros(10, np.int32)
    run(meeting, flags, floats, out)
    assert flags.tolist() == [3, 4, 5, 6]
    assert out.tolist() == [3, 4, 5, 6, *np.array([-0.0, -0.0, 2, 2], np.float32).view(np.int32).tolist(), 1, 0]
    assert np.signbit(floats[:2]).all()


@triton.jit
def waiting(flag_ptr):
    tl.atomic_poll(flag_ptr, 1)


def test_waiting_for_ever_is_seen_where_programs_run_one_after_the_other() -> None:
    with triton.interpret(), pytest.raises(KernelError, match="for ever"):
        waiting[(1,)](torch.zeros(1, dtype=torch.int32))


@triton.jit
def expecting(x_ptr, out_ptr):
    places = tl.arange(0, 4)
    tl.store(out_ptr + places, tl.expect_zero(tl.load(x_ptr + places), places < 2))


def test_what_is_expected_to_be_zero_is_left_as_it_is() -> None:
    x, out = torch.ones(4), torch.zeros(4)
    expecting[(1,)](x, out)
    assert torch.equal(out, x)
    with triton.interpret(), pytest.raises(KernelError, match="expect_zero"):
        expecting[(1,)](x, out)


@triton.jit
def made_of(out_ptr):
    tl.store(out_ptr, cuda.num_warps())
    tl.store(out_ptr + 1, cuda.num_threads())
    cuda.gdc_wait()
    cuda.gdc_launch_dependents()


def test_a_program_is_one_thread_on_a_cpu_and_has_the_warps_of_its_launch_on_a_gpu() -> None:
    from weft.backends.nvidia.target import NvidiaTarget
    from weft.frontends.triton.listings.device_listing import device_listing_of

    out = torch.zeros(2, dtype=torch.int32)
    made_of[(1,)](out, num_warps=8)
    assert out.tolist() == [1, 1]
    listing, _ = device_listing_of(made_of, [out], {"num_warps": 8}, NvidiaTarget())
    assert " 256;" in listing.code["ptx"]


@triton.jit
def smallest(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    tl.store(out_ptr + tl.arange(0, 2), tl.topk(x, 2, descending=False))
    tl.static_assert(tl.standard._log2(x.shape[0]) == 3)


def test_the_smallest_of_a_row() -> None:
    x, out = torch.randperm(8).float(), torch.zeros(2)
    smallest[(1,)](x, out)
    assert out.tolist() == [0, 1]


@triton.jit
def ragged(x, out, total, first, rows, BM: tl.constexpr, BN: tl.constexpr):
    block = load_ragged(x, first, rows, [tl.program_id(0) * BM, 0])
    store_ragged(out, first, rows, [tl.program_id(0) * BM, 0], block * 2)
    atomic_add_ragged(total, first, rows, [tl.program_id(0) * BM, 0], block)


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_block_is_cut_off_where_its_batch_ends(interpreted: bool) -> None:
    x, out, total = torch.randn(20, 8), torch.zeros(20, 8), torch.ones(20, 8)
    with triton.interpret(interpreted):
        descriptors = [create_ragged_descriptor(each, [4, 8]) for each in (x, out, total)]
        ragged[(2,)](*descriptors, 5, 6, BM=4, BN=8)
    batch = torch.zeros(20, 8)
    batch[5:11] = x[5:11]
    assert torch.equal(out, 2 * batch) and torch.equal(total, 1 + batch)


def test_the_last_axis_is_not_ragged() -> None:
    with pytest.raises(AssertionError, match="ragged"):
        create_ragged_descriptor(torch.zeros(4, 8), [4, 8], ragged_dim=-1)


# -- handles -------------------------------------------------------------------------------------------------------


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + places, tl.load(x_ptr + places, mask=places < n) * 2, mask=places < n)


@pytest.mark.parametrize("way", ["launch", "warmup"])
def test_a_handle_tells_of_its_kernel(way: str) -> None:
    x, out = torch.randn(100), torch.zeros(100)
    given: dict[str, Any] = {"BLOCK": 64, "num_warps": 2, "num_stages": 5}
    handle = scale[(2,)](x, out, 100, **given) if way == "launch" else scale.warmup(x, out, 100, grid=(2,), **given)
    handle._init_handles()
    assert {"tile", "ttir", "llir", "asm"} <= handle.asm.keys() and "scale" in handle.asm["ttir"]
    assert (handle.metadata.name, handle.metadata.shared, handle.metadata.num_stages) == ("scale", 0, 5)
    assert (handle.n_regs, handle.n_spills) == (0, 0)
    out.zero_()
    handle[(2,)](x, out, 100, 64)
    assert torch.equal(out, 2 * x)


@triton.jit
def _width(is_wide: tl.constexpr):
    if is_wide:
        return 16
    return 8


@triton.jit
def _of_two(x):
    if x > 3:
        return 2
    return 1


@triton.jit
def counted(out, IS_WIDE: tl.constexpr) -> None:
    size: tl.constexpr = _width(IS_WIDE)
    at = tl.arange(0, size)
    tl.store(out + at, at + _of_two(at.shape[0] + tl.program_id(0)))


@pytest.mark.parametrize("is_wide", [False, True])
def test_what_a_function_knows_when_it_is_compiled_stays_known(run: Any, is_wide: bool) -> None:
    """Since 3.7 a number that a function returns is a constexpr; where two ways give two numbers it cannot be."""
    out = np.zeros(16, np.int32)
    run(counted, out, IS_WIDE=is_wide)
    size = 16 if is_wide else 8
    np.testing.assert_array_equal(out[:size], np.arange(size) + 2)
    assert not out[size:].any()
