"""Attention on a GPU: the tile kernel gives the right numbers; what is made of it assembles and keeps its protocol."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp, WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaWaitOp
from weft.backends.nvidia.pipeline.tile_scheduler import TileScheduler
from weft.backends.nvidia.target import target_named
from weft.ir.attributes import to_attribute
from weft.ir.expr import evaluate
from weft.ir.types import DType, Tensor, bf16, boolean, f16, i64
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY
from weft.passes.grouping.build_groups import SCHEDULE
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
Shape = tuple[int, ...]


def attention(
    query: Shape,
    key: Shape,
    *,
    causal: bool,
    dtype: DType = bf16,
    mask: tuple[DType, Shape] | None = None,
    blocks: tuple[int, int] | None = None,
    op: str = "attention",
) -> Trial:
    """Attention of query heads that share key heads, if these are fewer; `blocks` are the rows and keys of tiles."""
    tensors = [Tensor(dtype, query), Tensor(dtype, key), Tensor(dtype, key), *([Tensor(*mask)] if mask else [])]
    batch, heads, length, width = key
    shared = query[1] // heads

    def body(b, *operands):  # type: ignore[no-untyped-def]
        q, *pair = operands[:3]
        if shared > 1:
            split, spread = (batch, heads, 1, length, width), (batch, heads, shared, length, width)
            whole = (batch, query[1], length, width)
            pair = [b.reshape(b.emit("broadcast", b.reshape(x, shape=split), shape=spread), shape=whole) for x in pair]
        return b.emit(op, q, *pair, *operands[3:], causal=causal, scale=width**-0.5)

    group = group_of(tensors, body)
    if blocks is not None:
        group.attributes[SCHEDULE] = to_attribute((*blocks, width, width))
    return Trial.of(group, "attention", gpu_machine())


@pytest.mark.parametrize(
    ("query", "key", "causal", "dtype", "mask"),
    [
        ((1, 2, 128, 64), (1, 2, 128, 64), False, bf16, None),
        ((1, 2, 300, 64), (1, 2, 333, 64), False, bf16, None),
        ((1, 2, 300, 64), (1, 2, 333, 64), True, bf16, None),
        ((1, 2, 333, 128), (1, 2, 200, 128), True, f16, None),
        ((2, 4, 257, 64), (2, 2, 130, 64), True, bf16, None),
        ((1, 2, 100, 96), (1, 2, 80, 96), False, bf16, None),
        ((1, 2, 150, 64), (1, 2, 300, 64), False, bf16, boolean),
        ((1, 2, 150, 64), (1, 2, 300, 64), True, bf16, bf16),
    ],
)
def test_the_tile_kernel_is_attention(query: Shape, key: Shape, causal: bool, dtype: DType, mask: DType | None) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(dtype.numpy) for shape in (query, key, key)]
    given = None if mask is None else (mask, (query[2], key[2]))
    if given is not None:
        numbers = rng.standard_normal(given[1])
        arrays.append(numbers > 0 if mask == boolean else numbers.astype(dtype.numpy))
    (found,) = run_interpreted(attention(query, key, causal=causal, dtype=dtype, mask=given), arrays)
    wide = [a.astype(np.float64) if a.dtype != np.bool_ else a for a in arrays]
    wide[1:3] = [np.repeat(a, query[1] // key[1], axis=1) for a in wide[1:3]]
    expected = REGISTRY["attention"].cls.reference(*wide, causal=causal, scale=key[-1] ** -0.5)
    error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < (4e-3 if dtype == bf16 else 5e-4)


@pytest.mark.parametrize("blocks", [(128, 64), (64, 128), (192, 128)])
def test_tiles_that_meet_the_diagonal_in_several_blocks(blocks: tuple[int, int]) -> None:
    rng = np.random.default_rng(6)
    query, key = (1, 1, 420, 64), (1, 1, 390, 64)
    arrays = [rng.standard_normal(shape).astype(bf16.numpy) for shape in (query, key, key)]
    (found,) = run_interpreted(attention(query, key, causal=True, blocks=blocks), arrays)
    expected = REGISTRY["attention"].cls.reference(*(a.astype(np.float64) for a in arrays), causal=True, scale=0.125)
    error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < 4e-3


@pytest.mark.parametrize("mask", [None, boolean, bf16])
def test_the_sums_of_powers_are_kept(mask: DType | None) -> None:
    rng = np.random.default_rng(7)
    shape, keys = (1, 2, 150, 64), (1, 2, 200, 64)
    arrays = [rng.standard_normal(sides).astype(bf16.numpy) for sides in (shape, keys, keys)]
    given = None if mask is None else (mask, (150, 200))
    if given is not None:
        numbers = rng.standard_normal(given[1])
        arrays.append(numbers > 0 if mask == boolean else numbers.astype(bf16.numpy))
        arrays[-1][7] = False if mask == boolean else -np.inf  # a row without any key
    found = run_interpreted(attention(shape, keys, causal=True, mask=given, op="attention_with_lse"), arrays)
    wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention_with_lse"].cls.reference(*wide, causal=True, scale=0.125)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other, atol=2e-2)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


@needs_ptxas
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("op", ["attention", "attention_with_lse"])
@pytest.mark.parametrize(("causal", "dtype"), [(False, bf16), (True, f16)])
def test_attention_assembles_without_spills(width: int, op: str, causal: bool, dtype: DType) -> None:
    shape = (4, 32, 4096, width)
    (call,) = attention(shape, shape, causal=causal, dtype=dtype, op=op).lowered.calls
    code = compile_kernels({"attention": call.kernel.op}, TARGET)
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error and not found.advice
    assert found.kernels["attention"].spilled == 0


@pytest.mark.parametrize("causal", [False, True])
def test_a_product_runs_while_powers_are_raised(causal: bool) -> None:
    shape = (1, 2, 700, 128)
    (call,) = attention(shape, shape, causal=causal, op="attention_with_lse").lowered.calls
    kernel, launch = annotate(call.kernel.op, TARGET)
    assert launch.persistent
    pending = [op.pending.value.data for op in kernel.walk() if isinstance(op, WgmmaWaitOp)]
    assert pending == [0, 1, 0, 0]  # the first scores; scores, then values, of a turn; the last values
    (roles,) = [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]
    assert next(ring.count for ring in roles.rings) == 2  # the queries of the next program come ahead
    for block in range(3):
        check(protocol_of(kernel, block=block, blocks=3), runs=5)


@pytest.mark.parametrize(
    ("query", "key", "mask"),
    [
        ((1, 2, 8, 64), (1, 2, 1000, 64), None),
        ((2, 1, 1, 128), (2, 1, 513, 128), None),
        ((1, 2, 4, 64), (1, 2, 700, 64), boolean),
        ((3, 1, 70, 96), (3, 1, 640, 96), None),
    ],
)
def test_few_rows_are_split_over_keys(query: Shape, key: Shape, mask: DType | None) -> None:
    rng = np.random.default_rng(9)
    arrays = [rng.standard_normal(shape).astype(bf16.numpy) for shape in (query, key, key)]
    given = None if mask is None else (mask, (query[2], key[2]))
    if given is not None:
        arrays.append(rng.standard_normal(given[1]) > 0)
        arrays[-1][1] = False
    trial = attention(query, key, causal=False, mask=given)
    assert len(trial.lowered.calls) == 2
    (found,) = run_interpreted(trial, arrays)
    wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention"].cls.reference(*wide, causal=False, scale=key[-1] ** -0.5)
    error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < 4e-3


@needs_ptxas
def test_split_attention_assembles() -> None:
    trial = attention((8, 8, 8, 128), (8, 8, 8192, 128), causal=False)
    code = compile_kernels({f"k{n}": call.kernel.op for n, call in enumerate(trial.lowered.calls)}, TARGET)
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error and not found.advice
    assert all(kernel.spilled == 0 for kernel in found.kernels.values())
    assert code.launches["k0"].persistent and code.launches["k0"].threads == 256


@needs_ptxas
@pytest.mark.parametrize("keys", [256, 301])
def test_what_is_compared_may_end_within_a_block_of_keys(keys: int) -> None:
    """Numbers of documents in memory, as many as there are keys: the last block has fewer than its sides."""
    shape, width = (1, 2, keys, 192), 192

    def body(b, q, k, v, row, key):  # type: ignore[no-untyped-def]
        return b.emit("attention", q, k, v, b.eq(row, key), causal=True, scale=width**-0.5)

    operands = [Tensor(bf16, shape)] * 3 + [Tensor(i64, (1, 1, keys, 1)), Tensor(i64, (1, 1, 1, keys))]
    trial = Trial.of(group_of(operands, body), "attention", gpu_machine())
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(bf16.numpy) for _ in range(3)]
    numbers = np.sort(rng.integers(0, 4, keys))
    documents = [numbers.reshape(1, 1, keys, 1), numbers.reshape(1, 1, 1, keys)]
    (found,) = run_interpreted(trial, [*arrays, *documents])
    seen = np.tril(documents[0] == documents[1])
    wide = [a.astype(np.float64) for a in arrays]
    expected = REGISTRY["attention"].cls.reference(*wide, seen, causal=False, scale=width**-0.5)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)
    code = compile_kernels({f"k{n}": call.kernel.op for n, call in enumerate(trial.lowered.calls)}, TARGET)
    assert not assemble(code.ptx, TARGET.arch).error


@pytest.mark.parametrize("causal", [False, True])
def test_there_may_be_no_rows(causal: bool) -> None:
    (call,) = attention((2, 2, 0, 64), (2, 2, 128, 64), causal=causal).lowered.calls
    assert compile_kernels({"k": call.kernel.op}, TARGET).ptx


@pytest.mark.parametrize("grid", [(3, 5, 7), (16, 32), (9,), (4, 1, 40), (1, 33, 5)])
@pytest.mark.parametrize("blocks", [1, 3, 132])
def test_pairs_of_programs_are_all_programs(grid: Shape, blocks: int) -> None:
    (call,) = attention((1, 9, 4224, 128), (1, 9, 4224, 128), causal=True, op="attention_with_lse").lowered.calls
    kernel = call.kernel.op
    assert kernel.paired
    kernel.attributes["grid"] = tile.Sizes(grid)
    first, count = BlockNumberOp.make("number"), BlockNumberOp.make("count")
    programs = TileScheduler.of(kernel, first.out, count.out)
    indices = [op for op in programs.loop.block.ops if isinstance(op, AffineApplyOp)]
    found: list[Shape] = []
    work = [0] * blocks
    for block in range(blocks):
        bounds = [evaluate(size, {"d0": block, "d1": blocks}) for size in programs.loop.bounds.data]
        for number in range(*bounds):
            place = tuple(evaluate(op.value.data[0], {"d0": number, "d1": blocks}) for op in indices)
            found.append(place)
            work[block] += place[-2 if len(grid) > 1 else 0] + 1
    assert set(found) == set(np.ndindex(*grid))
    if blocks == 3:
        assert max(work) < 1.25 * sum(work) / blocks


def latent(batch: int, heads: int, keys: int, width: int = 576, across: int = 512) -> Trial:
    """Attention whose values are the first columns of its keys, which all heads share."""

    def body(b, query, key):  # type: ignore[no-untyped-def]
        value = b.slice(key, starts=(0, 0, 0), shape=(batch, keys, across), steps=(1, 1, 1))
        return b.attention(query, key, value, causal=False, scale=0.07)

    operands = [Tensor(bf16, (batch, heads, width)), Tensor(bf16, (batch, keys, width))]
    return Trial.of(group_of(operands, body), "attention", gpu_machine())


@pytest.mark.parametrize(
    ("heads", "keys", "width", "across"), [(16, 100, 576, 512), (5, 333, 576, 512), (64, 70, 320, 320)]
)
def test_wide_heads_of_few_rows(heads: int, keys: int, width: int, across: int) -> None:
    rng = np.random.default_rng(keys)
    query, key = (rng.standard_normal((2, rows, width)).astype(bf16.numpy) for rows in (heads, keys))
    (found,) = run_interpreted(latent(2, heads, keys, width, across), [query, key])
    wide = [x.astype(np.float64) for x in (query, key, key[..., :across])]
    expected = REGISTRY["attention"].cls.reference(*wide, causal=False, scale=0.07)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


@needs_ptxas
@pytest.mark.parametrize("batch", [2, 32])
def test_wide_heads_assemble_without_spills(batch: int) -> None:
    parts, _ = latent(batch, 16, 4096).lowered.calls
    assert 2 in parts.kernel.op.grid.data  # halves of the values
    found = assemble(compile_kernels({"attention": parts.kernel.op}, TARGET).ptx, TARGET.arch)
    assert not found.error and not found.advice
    (kernel,) = found.kernels.values()
    assert kernel.spilled == 0
