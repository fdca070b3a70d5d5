"""Masks of attention on a GPU that compare places: whole blocks of keys are skipped, others need no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.backends.nvidia.check.protocol import Protocol, check
from weft.backends.nvidia.check.protocol_events import AsyncCopy, Wait
from weft.backends.nvidia.check.simulator_memory import SimulationError
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.dynamic_tile_scheduler import DYNAMIC
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, boolean, f32, i32, i64
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
Mask = Callable[..., SSAValue]


def number(b: Any, value: int) -> SSAValue:
    return b.full(value=value, shape=(), dtype=i64)


def window(b: Any, row: SSAValue, key: SSAValue, width: int = 100) -> SSAValue:
    return b.bitwise_and(b.ge(row, key), b.lt(b.sub(row, key), number(b, width)))


def window_and_first(b: Any, row: SSAValue, key: SSAValue, width: int = 100, first: int = 4) -> SSAValue:
    seen = b.bitwise_or(b.lt(key, number(b, first)), b.lt(b.sub(row, key), number(b, width)))
    return b.bitwise_and(b.ge(row, key), seen)


def around(b: Any, row: SSAValue, key: SSAValue) -> SSAValue:
    ahead = b.le(b.sub(key, row), number(b, 70))
    return b.logical_and(ahead, b.logical_not(b.gt(b.sub(row, key), number(b, 130))))


def every_other(b: Any, row: SSAValue, key: SSAValue) -> SSAValue:
    two = number(b, 2)
    return b.eq(b.remainder(b.add(row, key), two), number(b, 0))


def falling(b: Any, row: SSAValue, key: SSAValue) -> SSAValue:
    """What is added: less for keys that are further away, and nothing for those to come."""
    slope = b.full(value=-0.125, shape=(), dtype=f32)
    added = b.cast(b.mul(b.cast(b.sub(row, key), dtype=f32), slope), dtype=bf16)
    return b.where(b.ge(row, key), added, b.full(value=-np.inf, shape=(), dtype=bf16))


MASKS: dict[str, Mask] = {
    "window": window,
    "window_and_first": window_and_first,
    "around": around,
    "every_other": every_other,
    "falling": falling,
}


def masked(mask: Mask, rows: int, keys: int, width: int = 64, heads: int = 2, *, op: str = "attention") -> Trial:
    query, key = Tensor(bf16, (1, heads, rows, width)), Tensor(bf16, (1, heads, keys, width))

    def body(b: Any, *operands: SSAValue) -> Any:
        row = b.iota(shape=(rows, 1), dim=0, dtype=i64)
        made = mask(b, row, b.iota(shape=(1, keys), dim=1, dtype=i64))
        return b.emit(op, *operands, made, causal=False, scale=width**-0.5)

    return Trial.of(group_of([query, key, key], body), "attention", gpu_machine())


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("rows", "keys"), [(300, 333), (128, 500)])
def test_masks_on_places(name: str, rows: int, keys: int) -> None:
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal((1, 2, size, 64)).astype(bf16.numpy) for size in (rows, keys, keys)]
    (found,) = run_interpreted(masked(MASKS[name], rows, keys), arrays)
    row, key = np.arange(rows)[:, None], np.arange(keys)[None]
    masks = {
        "window": (row >= key) & (row - key < 100),
        "window_and_first": (row >= key) & ((key < 4) | (row - key < 100)),
        "around": (key - row <= 70) & (row - key <= 130),
        "every_other": (row + key) % 2 == 0,
        "falling": np.where(row >= key, -0.125 * (row - key), -np.inf).astype(bf16.numpy).astype(np.float64),
    }
    wide = [a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention"].cls.reference(*wide, masks[name], causal=False, scale=0.125)
    error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < 4e-3


def brought_by(protocol: Protocol) -> int:
    return sum(isinstance(event, AsyncCopy) for event in protocol.agents["producer 0"])


def copies(trial: Trial, number: int = 0) -> int:
    """How many tiles TMA brings for all programs; checks the barriers, too."""
    (call,) = trial.lowered.calls
    kernel, _ = annotate(call.kernel.op, TARGET)
    protocol = protocol_of(kernel, number=number)
    check(protocol, runs=3)
    return brought_by(protocol)


@pytest.mark.parametrize("op", ["attention", "attention_with_lse"])
@pytest.mark.parametrize(("rows", "keys", "apart"), [(600, 640, True), (300, 1100, True), (700, 400, False)])
def test_the_edges_of_a_wide_window_are_masked_apart(rows: int, keys: int, apart: bool, op: str) -> None:
    rng = np.random.default_rng(12)
    arrays = [rng.standard_normal((1, 2, size, 64)).astype(bf16.numpy) for size in (rows, keys, keys)]
    trial = masked(lambda b, row, key: window(b, row, key, 400), rows, keys, op=op)
    found, *_ = run_interpreted(trial, arrays)
    row, key = np.arange(rows)[:, None], np.arange(keys)[None]
    wide = [a.astype(np.float64) for a in arrays]
    seen = (row >= key) & (row - key < 400)
    expected = REGISTRY["attention"].cls.reference(*wide, seen, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)
    compared = [op for op in trial.lowered.calls[0].kernel.op.walk() if _compares_tiles(op)]
    split = len(trial.lowered.calls) > 1  # a part may begin with any block
    assert len(compared) == (3 if apart and not split else 6)  # of the first block, and of loops beyond and before


@pytest.mark.parametrize(
    ("rows", "keys", "width", "first"), [(700, 740, 257, 130), (600, 600, 100, 1), (650, 900, 300, 0)]
)
def test_first_keys_are_visited_behind_a_window(rows: int, keys: int, width: int, first: int) -> None:
    rng = np.random.default_rng(13)
    arrays = [rng.standard_normal((1, 2, size, 64)).astype(bf16.numpy) for size in (rows, keys, keys)]
    trial = masked(lambda b, row, key: window_and_first(b, row, key, width, first), rows, keys, op="attention_with_lse")
    found, _ = run_interpreted(trial, arrays)
    row, key = np.arange(rows)[:, None], np.arange(keys)[None]
    seen = (row >= key) & ((row - key < width) | (key < first))
    wide = [a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention"].cls.reference(*wide, seen, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


def _compares_tiles(op: Any) -> bool:
    return isinstance(op, tile.MapOp) and op.function.data in ("le", "ge") and tile.tile_type(op.out).sizes[0] > 1


def test_blocks_that_no_row_sees_are_skipped() -> None:
    rows, heads = 1024, 2
    tiles = rows // 128
    assert copies(masked(window, rows, rows, 128, op="attention_with_lse")) == heads * sum(
        1 + 2 * min(n + 1, 2) for n in range(tiles)
    )
    with_first = [1 + 2 * min(n + 1, 3) for n in range(tiles)]
    assert copies(masked(window_and_first, rows, rows, 128, op="attention_with_lse")) == heads * sum(with_first)


def assert_no_spills(trial: Trial) -> None:
    *_, call = trial.lowered.calls
    found = assemble(compile_kernels({"attention": call.kernel.op}, TARGET).ptx, TARGET.arch)
    assert not found.error and not found.advice
    assert found.kernels["attention"].spilled == 0


@needs_ptxas
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("rows", "width"), [(4096, 64), (4096, 128), (4000, 128)])
def test_masked_attention_assembles_without_spills(name: str, rows: int, width: int) -> None:
    assert_no_spills(masked(MASKS[name], rows, rows, width, heads=32))


@needs_ptxas
@pytest.mark.parametrize(("dtype", "width"), [(boolean, 96), (boolean, 256), (bf16, 128), (bf16, 192)])
def test_masks_in_memory_beside_odd_rows_need_no_second_accumulator(dtype: DType, width: int) -> None:
    query, mask = Tensor(bf16, (1, 64, 4000, width)), Tensor(dtype, (1, 1, 4000, 4000))

    def body(b: Any, *operands: SSAValue) -> Any:
        return b.emit("attention", *operands, causal=False, scale=width**-0.5)

    assert_no_spills(Trial.of(group_of([query, query, query, mask], body), "attention", gpu_machine()))


@pytest.mark.parametrize(("name", "drawn"), [("window", True), ("window_and_first", True), ("every_other", False)])
def test_many_programs_of_different_lengths_are_drawn(name: str, drawn: bool) -> None:
    trial = masked(MASKS[name], 2048, 2048, 128, heads=32)
    *before, call = trial.lowered.calls
    assert len(before) == len(trial.lowered.scratch) == drawn  # a counter, and what sets it to 0
    kernel, launch = annotate(call.kernel.op, TARGET)
    assert launch.persistent
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp) and DYNAMIC in op.attributes]
    assert len(loops) == (2 if drawn else 0)  # the producer's and the consumers'
    assert ("atom.global.inc" in compile_kernels({"attention": call.kernel.op}, TARGET).ptx) == drawn
    check(protocol_of(kernel, block=3, blocks=100), runs=5)


def test_numbers_that_are_not_awaited_are_found() -> None:
    *_, call = masked(window, 2048, 2048, 128, heads=32).lowered.calls
    protocol = protocol_of(annotate(call.kernel.op, TARGET)[0], block=3, blocks=100)
    late = [
        event for event in protocol.agents["consumer 0"] if not (isinstance(event, Wait) and "number" in event.barrier)
    ]
    with pytest.raises(SimulationError):
        check(Protocol({**protocol.agents, "consumer 0": late}, protocol.barriers), runs=5)


def up_to_positions(rows: int, keys: int, batch: int = 2) -> Trial:
    """Keys up to a number of each batch, and attention of rows that share them."""
    query, key = Tensor(bf16, (batch, 1, rows, 64)), Tensor(bf16, (batch, 1, keys, 64))

    def body(b: Any, q: SSAValue, k: SSAValue, v: SSAValue, position: SSAValue) -> SSAValue:
        places = b.iota(shape=(1, 1, 1, keys), dim=3, dtype=i64)
        seen = b.le(places, b.cast(b.reshape(position, shape=(batch, 1, 1, 1)), dtype=i64))
        return b.attention(q, k, v, seen, causal=False, scale=0.125)

    return Trial.of(group_of([query, key, key, Tensor(i32, (batch,))], body), "attention", gpu_machine())


@pytest.mark.parametrize("positions", [(0, 700), (127, 128), (-1, 5), (300, 5000)])
def test_keys_up_to_a_number_in_memory(positions: tuple[int, int]) -> None:
    rng = np.random.default_rng(10)
    rows, keys = 4, 701
    arrays = [rng.standard_normal((2, 1, size, 64)).astype(bf16.numpy) for size in (rows, keys, keys)]
    (found,) = run_interpreted(up_to_positions(rows, keys), [*arrays, np.array(positions, np.int32)])
    mask = np.arange(keys)[None, None, None] <= np.array(positions)[:, None, None, None]
    wide = [a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention"].cls.reference(*wide, mask, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


def test_blocks_behind_a_number_in_memory_are_skipped() -> None:
    parts, _ = up_to_positions(4, 8192).lowered.calls
    kernel, _ = annotate(parts.kernel.op, TARGET)
    brought: list[int] = []
    for position in (100, 4000, 8191):
        protocol = protocol_of(kernel, number=position - tile.NumberOp.LEAST)
        check(protocol, runs=3)
        brought.append(brought_by(protocol))
    programs = 2 * 64
    assert brought == [3 * programs, 3 * programs, 3 * programs]  # one block each


@pytest.mark.parametrize("added", [False, True])
def test_a_mask_in_memory_is_followed_where_it_says_which_keys_are_seen(added: bool) -> None:
    rows, heads = 640, 2
    row, key = np.arange(rows)[:, None], np.arange(rows)[None]
    mask = (row >= key) & ((row - key < 257) | (key < 4))
    ends = [[0, 128, 0, 0, 0], [0, 256, 0, 128, 0], [0, 384, 128, 256, 0], [0, 512, 256, 384, 0]]
    ends.append([256, 640, 384, 512, 128])
    shape = (1, heads, rows, 64)
    tensors = [Tensor(bf16, shape)] * 3
    tensors += [Tensor(bf16 if added else boolean, (rows, rows)), *[Tensor(i64, (5, 1))] * 5]

    def body(b: Any, *operands: SSAValue) -> Any:
        return b.attention_with_lse(*operands, causal=False, scale=0.125)

    trial = Trial.of(group_of(tensors, body), "attention", gpu_machine())
    rng = np.random.default_rng(11)
    arrays = [rng.standard_normal(shape).astype(bf16.numpy) for _ in range(3)]
    given = np.where(mask, 0.0, -np.inf).astype(bf16.numpy) if added else mask
    found, _ = run_interpreted(trial, [*arrays, given, *np.hsplit(np.array(ends), 5)])
    wide = [a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention"].cls.reference(*wide, mask, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)
    # Were all of the numbers 0, each tile would have one block to visit.
    assert copies(trial, number=-tile.NumberOp.LEAST) == heads * 5 * 3
