"""`align_operands`: matrices whose rows begin anywhere are copied to longer rows before a GPU multiplies them."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, bf16, f32
from weft.ops.graph import GraphBuilder, GroupOp
from weft.passes.claim_libraries import ClaimLibraries
from weft.passes.dot.align_operands import AlignOperands, worth_aligning
from weft.passes.grouping.build_groups import CLAIM, OWN
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.simplify.eliminate_dead import EliminateDead

M, N, K = 1280, 1290, 129


def plain(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    return b.dot(x, w)


def turned(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    return b.dot(b.permute(x, dims=(1, 0)), b.permute(w, dims=(1, 0)))


@pytest.mark.parametrize(
    ("body", "x", "w", "copies"),
    [
        (plain, (M, K), (K, N), 2),
        (plain, (M, 128), (128, N), 1),
        (plain, (M, K), (K, 1296), 1),
        (turned, (K, M), (N, K), 1),
        (turned, (128, M), (N, 128), 0),
        (plain, (40, K), (K, N), 0),
    ],
)
def test_operands_that_the_copy_engine_cannot_read_are_copied(
    passes: Any, body: Any, x: tuple[int, int], w: tuple[int, int], copies: int
) -> None:
    module = passes.built({"x": Tensor(bf16, x), "w": Tensor(bf16, w)}, body)
    text = str(passes.apply(AlignOperands(), module, rtol=0.01))
    assert text.count('"graph.pad"') == copies


@pytest.mark.parametrize(
    ("sides", "copies", "beside_a_library"),
    [
        ((2368, 4966, 67), 2, 0),
        ((2048, 8192, 110), 1, 1),  # a library is slow with such rows
        ((550, 55, 4812), 0, 0),
        ((9570, 107, 5142), 0, 0),
        ((64, 100, 70), 0, 0),
    ],
)
def test_short_copies_are_made_where_no_library_may_multiply_or_one_is_slow(
    passes: Any, sides: tuple[int, int, int], copies: int, beside_a_library: int
) -> None:
    m, n, k = sides
    for everywhere, wanted in ((True, copies), (False, beside_a_library)):
        module = passes.built({"x": Tensor(bf16, (m, k)), "w": Tensor(bf16, (k, n))}, plain)
        AlignOperands(everywhere=everywhere).apply(Context(), module)
        assert str(module).count('"graph.pad"') == wanted


def test_cuts_that_begin_within_a_chunk_are_copied(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        cuts = [b.slice(x, starts=(0, start), shape=(M, 128), steps=(1, 1)) for start in (1, 8)]
        return [b.dot(cut, w) for cut in cuts]

    module = passes.built({"x": Tensor(bf16, (M, 136)), "w": Tensor(bf16, (128, 1280))}, body)
    assert str(passes.apply(AlignOperands(), module, rtol=0.01)).count('"graph.pad"') == 1


def test_what_two_products_read_is_copied_once(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> list[SSAValue]:
        return [b.dot(x, w), b.dot(x, v)]

    shapes = {"x": (M, K), "w": (K, 1280), "v": (K, 1280)}
    module = passes.built({name: Tensor(bf16, shape) for name, shape in shapes.items()}, body)
    assert str(passes.apply(AlignOperands(), module, rtol=0.01)).count('"graph.pad"') == 1


def test_copies_must_be_short_beside_the_product() -> None:
    assert worth_aligning((4096, 4096), 4095, 2 * 4096 * 4095, [2 * 4095])
    assert worth_aligning((2047, 2047), 2047, 4 * 2047**2, [2 * 2047])
    assert not worth_aligning((1024, 1024), 129, 2 * 1024 * 129, [2 * 129])
    assert worth_aligning((2052, 2052), 2052, 4 * 2052**2, [2 * 2052])
    assert not worth_aligning((1024, 1024), 1028, 4 * 1024 * 1028, [2 * 1028])


def test_what_a_gradient_reads_turned_is_copied_once(passes: Any) -> None:
    """Logits' gradients are multiplied by weights along the vocabulary, and turned by what the logits were made of."""

    def body(b: GraphBuilder, dy: SSAValue, w: SSAValue, x: SSAValue) -> list[SSAValue]:
        rows = b.reshape(dy, shape=(M, N))
        other = b.reshape(dy, shape=(M, N))
        return [b.dot(rows, w), b.dot(b.permute(other, dims=(1, 0)), x)]

    shapes = {"dy": (4, M // 4, N), "w": (N, 128), "x": (M, 128)}
    module = passes.built({name: Tensor(bf16, shape) for name, shape in shapes.items()}, body)
    assert str(passes.apply(AlignOperands(), module, rtol=0.01)).count('"graph.pad"') == 1


@pytest.mark.parametrize("wide", [False, True])
def test_what_a_kernel_computes_is_written_to_longer_rows_with_the_sums_of_its_columns(passes: Any, wide: bool) -> None:
    """The gradient of logits: multiplied by the weights, turned by the hidden states, and summed up for the bias.

    Under autocast, a GPU's sums are those of f32.
    """

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, h: SSAValue) -> list[SSAValue]:
        dy = b.cast(b.exp(b.cast(x, dtype=f32)), dtype=bf16)
        rows, other = b.reshape(dy, shape=(M, N)), b.reshape(dy, shape=(M, N))
        summed = b.cast(rows, dtype=f32) if wide else rows
        bias = b.cast(b.cast(b.reshape(b.sum(summed, dims=(0,), keep=True), shape=(N,)), dtype=bf16), dtype=f32)
        return [b.dot(rows, w), b.dot(b.permute(other, dims=(1, 0)), h), bias]

    shapes = {"x": (4, M // 4, N), "w": (N, 1280), "h": (M, 1280)}
    module = passes.built({name: Tensor(bf16, shape) for name, shape in shapes.items()}, body)
    passes.apply([AlignOperands(), EliminateDead(), GroupIntoKernels(column_sums=True)], module, rtol=0.01)
    groups = [op for op in passes.function(module).block.ops if isinstance(op, GroupOp)]
    writing = [group for group in groups if "graph.pad" in {op.name for op in group.block.ops}]
    assert [len(group.results) for group in writing] == [2], "longer rows and sums, and no shorter rows beside them"
    assert {"graph.exp", "graph.sum"} <= {op.name for op in writing[0].block.ops}


@pytest.mark.parametrize(
    ("sides", "own"),
    [
        ((550, 550, 4812), True),  # a library is slow with such rows
        ((60, 119, 60), True),  # few results
        ((1574, 12619, 29), False),  # a short K, many results
        ((1491, 103, 2682), False),  # one tile beside a long side
        ((55, 798, 90), True),
        ((33, 33, 100_001), False),  # longer than was measured
        ((16, 2107, 122), False),  # so few rows are no tiles
    ],
)
def test_where_a_library_is_slow_a_matmul_is_a_kernel(passes: Any, sides: tuple[int, int, int], own: bool) -> None:
    m, n, k = sides
    module = passes.built({"x": Tensor(bf16, (m, k)), "w": Tensor(bf16, (k, n + 1))}, _cut)
    for each in (AlignOperands(), ClaimLibraries(all_floats=True, fast_matmuls=True)):
        each.apply(Context(), module)
    assert (CLAIM not in str(module)) == own == (OWN in str(module))


def _cut(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    """A matmul with weights whose rows begin anywhere: they are cut out of longer ones."""
    k, n = b.tensor(w).shape
    assert isinstance(k, int) and isinstance(n, int)
    return b.dot(x, b.slice(w, starts=(0, 1), shape=(k, n - 1), steps=(1, 1)))


def windows(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    """Windows of 7 by 7 of images of 14 by 14, one after the other, times weights."""
    (rows, width), images = b.tensor(x).shape, int(b.tensor(x).shape[0]) // 196  # type: ignore[arg-type]
    parts = b.permute(b.reshape(x, shape=(images, 2, 7, 2, 7, width)), dims=(0, 1, 3, 2, 4, 5))
    return b.dot(b.reshape(parts, shape=(rows, width)), w)


@pytest.mark.parametrize(("images", "copies"), [(8, 1), (64, 0)])
def test_rows_in_short_runs_are_written_one_after_the_other(passes: Any, images: int, copies: int) -> None:
    """Of many images, rows at one place of a window are a run as long as a tile."""
    module = passes.built({"x": Tensor(bf16, (196 * images, 512)), "w": Tensor(bf16, (512, 2048))}, windows)
    text = str(passes.apply(AlignOperands(), module, rtol=0.01))
    assert text.count('"graph.pad"') == copies


@pytest.mark.parametrize("sides", [(256, 128, 0), (0, 128, 64), (256, 0, 64)])
def test_empty_matmuls_have_no_runs(passes: Any, sides: tuple[int, int, int]) -> None:
    m, n, k = sides
    module = passes.built({"x": Tensor(bf16, (k, m)), "w": Tensor(bf16, (k, n))}, _of_turned)
    AlignOperands(everywhere=True).apply(Context(), module)
    assert '"graph.pad"' not in str(module)


def _of_turned(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    return b.dot(b.permute(x, dims=(1, 0)), w)
