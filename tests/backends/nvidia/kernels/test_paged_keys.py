"""Attention over keys in pages: blocks of keys are read from the pages that a table tells, without a copy of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.protocol_events import AsyncCopy
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.target import target_named
from weft.errors import LoweringError
from weft.ir.types import Tensor, bf16, i32, i64
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
FEW = (2, 2, 4, 64)
"""Sequences, heads of keys, rows, and the width of heads."""


def paged(
    sizes: tuple[int, int, int, int],
    page: int,
    count: int,
    *,
    pages: int = 20,
    by_heads: bool = False,
    masked: bool = True,
) -> Trial:
    """Attention over `count` pages for each sequence; pages have their heads outside, or inside."""
    batch, heads, rows, width = sizes
    inside = (heads, page) if by_heads else (page, heads)
    cache = Tensor(bf16, (pages, *inside, width))
    given = [Tensor(bf16, (batch, heads, rows, width)), cache, cache]
    given += [Tensor(i32, (batch, count)), Tensor(i64, (batch, 1, 1, 1))]

    def body(b: Any, query: SSAValue, keys: SSAValue, values: SSAValue, table: SSAValue, lengths: SSAValue) -> Any:
        operands = [query]
        for cache in (keys, values):
            chosen = b.take(cache, table, dim=0)
            if by_heads:
                turned = b.permute(chosen, dims=(0, 2, 1, 3, 4))
                operands.append(b.reshape(turned, shape=(batch, heads, count * page, width)))
            else:
                line = b.reshape(chosen, shape=(batch, count * page, heads, width))
                operands.append(b.permute(line, dims=(0, 2, 1, 3)))
        place = b.iota(shape=(1, 1, 1, count * page), dim=3, dtype=i64)
        masks = [b.lt(place, lengths)] if masked else []
        return b.attention(*operands, *masks, causal=False, scale=width**-0.5)

    return Trial.of(group_of(given, body), "attention", gpu_machine())


@pytest.mark.parametrize("by_heads", [False, True])
@pytest.mark.parametrize(("page", "count", "rows"), [(16, 37, 4), (32, 9, 1), (48, 7, 4), (128, 3, 4), (256, 2, 70)])
def test_pages_are_read_where_they_lie(page: int, count: int, rows: int, by_heads: bool) -> None:
    batch, heads, _, width = FEW
    rng = np.random.default_rng(page)
    inside = (heads, page) if by_heads else (page, heads)
    query = rng.standard_normal((batch, heads, rows, width)).astype(bf16.numpy)
    caches = [rng.standard_normal((20, *inside, width)).astype(bf16.numpy) for _ in range(2)]
    table = rng.integers(-20, 20, (batch, count)).astype(np.int32)
    lengths = np.array([1, page * count - 3]).reshape(batch, 1, 1, 1)
    trial = paged((batch, heads, rows, width), page, count, by_heads=by_heads)
    (found,) = run_interpreted(trial, [query, *caches, table, lengths])
    axes = (0, 2, 1, 3, 4) if by_heads else (0, 3, 1, 2, 4)
    lines = [c.astype(np.float64)[table].transpose(axes).reshape(batch, heads, -1, width) for c in caches]
    seen = np.arange(page * count) < lengths
    expected = REGISTRY["attention"].cls.reference(query.astype(np.float64), *lines, seen, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


def test_parts_of_larger_caches_and_tables() -> None:
    """Keys and values in one tensor, a list of all sequences' pages, of which the table has more than are read."""
    batch, heads, page, count, width = 2, 2, 16, 9, 64
    rng = np.random.default_rng(5)
    query = rng.standard_normal((batch, heads, 4, width)).astype(bf16.numpy)
    both = rng.standard_normal((20, 2, page, heads, width)).astype(bf16.numpy)
    table = rng.integers(0, 20, (batch, count + 3)).astype(np.int64)

    def body(b: Any, query: SSAValue, both: SSAValue, table: SSAValue) -> Any:
        chosen = b.slice(table, starts=(0, 1), shape=(batch, count), steps=(1, 1))
        chosen = b.reshape(chosen, shape=(batch * count,))
        operands = [query]
        for number in range(2):
            own = b.slice(both, starts=(0, number, 0, 0, 0), shape=(20, 1, page, heads, width), steps=(1,) * 5)
            own = b.take(b.reshape(own, shape=(20, page, heads, width)), chosen, dim=0)
            line = b.reshape(own, shape=(batch, count * page, heads, width))
            operands.append(b.permute(line, dims=(0, 2, 1, 3)))
        return b.attention(*operands, causal=False, scale=0.125)

    given = [Tensor(bf16, query.shape), Tensor(bf16, both.shape), Tensor(i64, table.shape)]
    trial = Trial.of(group_of(given, body), "attention", gpu_machine())
    assert any(isinstance(op, tile.LoadOp) and op.pieces > 1 for op in trial.lowered.calls[0].kernel.op.walk())
    (found,) = run_interpreted(trial, [query, both, table])
    chosen = both.astype(np.float64)[table[:, 1 : count + 1]]
    lines = [chosen[:, :, n].transpose(0, 3, 1, 2, 4).reshape(batch, heads, -1, width) for n in range(2)]
    expected = REGISTRY["attention"].cls.reference(query.astype(np.float64), *lines, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("pages", "turned"), [((16, 16), True), ((64, 64), True), ((256, 256), True), ((64, 48), False), ((48, 64), False)]
)
def test_pages_that_no_copy_brings(pages: tuple[int, int], turned: bool) -> None:
    """Keys of which the slots lie side by side, and pages of two sizes, of which no block is made."""
    batch, heads, rows, width = FEW
    length = 192 if 48 in pages else 256
    rng = np.random.default_rng(sum(pages))
    shapes = [(20, heads, page, width) for page in pages]
    axes = [(0, 2, 1, 3, 4)] * 2
    if turned:
        shapes[0], axes[0] = (20, heads, width, pages[0]), (0, 2, 1, 4, 3)
    arrays = [rng.standard_normal(shape).astype(bf16.numpy) for shape in ((batch, heads, rows, width), *shapes)]
    arrays += [rng.integers(0, 20, (batch, length // page)).astype(np.int32) for page in pages]
    query, *caches = (array.astype(np.float64) for array in arrays[:3])

    def body(b: Any, query: SSAValue, *given: SSAValue) -> Any:
        chosen = [b.permute(b.take(given[n], given[n + 2], dim=0), dims=axes[n]) for n in range(2)]
        lines = [b.reshape(each, shape=(batch, heads, length, width)) for each in chosen]
        return b.attention(query, *lines, causal=False, scale=0.125)

    given = [Tensor(i32 if array.dtype == np.int32 else bf16, array.shape) for array in arrays]
    trial = Trial.of(group_of(given, body), "attention", gpu_machine())
    (found,) = run_interpreted(trial, arrays)
    chosen = [cache[table].transpose(turn) for cache, table, turn in zip(caches, arrays[3:], axes, strict=True)]
    lines = [each.reshape(batch, heads, length, width) for each in chosen]
    expected = REGISTRY["attention"].cls.reference(query, *lines, causal=False, scale=0.125)
    assert np.linalg.norm(found.astype(np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


@needs_ptxas
@pytest.mark.parametrize("page", [16, 64, 256])
def test_a_block_of_keys_is_a_copy_for_each_page(page: int) -> None:
    trial = paged((8, 8, 8, 128), page, 8192 // page, pages=4096)
    parts, _ = trial.lowered.calls
    code = compile_kernels({"attention": parts.kernel.op}, TARGET)
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error and not found.advice
    (kernel,) = found.kernels.values()
    assert kernel.spilled == 0
    boxes = [map_.box[1] for map_ in code.launches["attention"].maps]
    assert boxes[1:] == [min(page, 128)] * 2


def test_barriers_count_the_pieces_of_a_block() -> None:
    parts, _ = paged((1, 1, 8, 128), 16, 64, masked=False).lowered.calls
    kernel, _ = annotate(parts.kernel.op, TARGET)
    protocol = protocol_of(kernel)
    check(protocol, runs=3)
    assert any(isinstance(event, AsyncCopy) for event in protocol.agents["producer 0"])


def test_only_the_copy_engine_reads_pieces() -> None:
    parts, _ = paged((1, 1, 8, 128), 16, 64).lowered.calls
    with pytest.raises(LoweringError, match="TMA"):
        annotate(parts.kernel.op, target_named("sm_80"))
