"""`split_dots`, and kernels of two products: gates and what they open."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, bf16, u8
from weft.ops.graph import GraphBuilder
from weft.passes.dot.sink_reshapes import SinkReshapes
from weft.passes.dot.split_dots import SplitDots
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.quantize.fuse_dequantization import FuseDequantization
from weft.passes.simplify.eliminate_dead import EliminateDead

M, N, K = 1280, 1280, 128
ARGUMENTS = {"x": Tensor(bf16, (M, K)), "w": Tensor(bf16, (K, 2 * N))}
PASSES = (SplitDots(), SinkReshapes(), EliminateDead(), GroupIntoKernels(products=2))


def halves(b: GraphBuilder, y: SSAValue, first: int = 0, second: int = N) -> list[SSAValue]:
    rank = b.tensor(y).rank
    shape = (*b.tensor(y).shape[:-1], N)
    return [b.slice(y, starts=(*[0] * (rank - 1), s), shape=shape, steps=(1,) * rank) for s in (first, second)]


def gated(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    gate, opened = halves(b, b.dot(x, w))
    return b.mul(b.silu(gate), opened)


def gated_tokens(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    gate, opened = halves(b, b.reshape(b.dot(x, w), shape=(2, M // 2, 2 * N)))
    return b.mul(b.silu(gate), opened)


@pytest.mark.parametrize("body", [gated, gated_tokens])
def test_a_gate_and_what_it_opens_are_one_kernel(passes: Any, body: Any) -> None:
    text = str(passes.apply(PASSES, passes.built(ARGUMENTS, body), rtol=0.02))
    assert text.count('"graph.group"') == 1 and text.count('"graph.dot"') == 2


def apart(b: GraphBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
    return [b.silu(each) for each in halves(b, b.dot(x, w))]


def read_whole(b: GraphBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
    y = b.dot(x, w)
    gate, opened = halves(b, y)
    return [b.mul(b.silu(gate), opened), b.neg(y)]


def overlapping(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    return b.mul(*halves(b, b.dot(x, w), 0, N // 2))


def three(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    y = b.dot(x, w)
    parts = [b.slice(y, starts=(0, start), shape=(M, N // 2), steps=(1, 1)) for start in (0, N // 2, N)]
    return b.mul(b.mul(parts[0], parts[1]), parts[2])


def every_other(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    y = b.dot(x, w)
    return b.mul(*(b.slice(y, starts=(0, start), shape=(M, N), steps=(1, 2)) for start in (0, 1)))


@pytest.mark.parametrize("body", [apart, read_whole, overlapping, three, every_other])
def test_other_products_stay_whole(passes: Any, body: Any) -> None:
    text = str(passes.apply(PASSES, passes.built(ARGUMENTS, body), rtol=0.02))
    assert text.count('"graph.dot"') == 1


def test_products_of_few_rows_stay_whole(passes: Any) -> None:
    arguments = {**ARGUMENTS, "x": Tensor(bf16, (16, K))}
    assert str(passes.apply(PASSES, passes.built(arguments, gated), rtol=0.02)).count('"graph.dot"') == 1


def test_only_products_of_the_same_rows_share_a_kernel(passes: Any) -> None:
    one = Tensor(bf16, (M, K))
    two = Tensor(bf16, (K, N))

    def body(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue) -> SSAValue:
        return b.mul(b.dot(x, w), b.dot(y, w))

    text = str(passes.apply(PASSES, passes.built({"x": one, "y": one, "w": two}, body), rtol=0.02))
    assert text.count('"graph.group"') == 2


FEW = {"x": Tensor(bf16, (2, 512)), "w": Tensor(bf16, (2 * N, 512)), "v": Tensor(bf16, (N, 512))}


def gated_rows(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> SSAValue:
    return gated(b, x, b.permute(w, dims=(1, 0)))


def two_gates(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> SSAValue:
    first = b.slice(w, starts=(0, 0), shape=(N, 512), steps=(1, 1))
    return b.mul(*(b.dot(x, b.permute(each, dims=(1, 0))) for each in (first, v)))


GATES = [(gated_rows, True, 1), (gated_rows, False, 2), (two_gates, False, 1)]


@pytest.mark.parametrize(("body", "few_rows", "groups"), GATES)
def test_gates_of_few_rows(passes: Any, body: Any, few_rows: bool, groups: int) -> None:
    split = (SplitDots(few_rows=few_rows), *PASSES[1:])
    text = str(passes.apply(split, passes.built(FEW, body), rtol=0.02))
    assert text.count('"graph.group"') == groups


@pytest.mark.parametrize("change", [{"x": (2, 500), "w": (2 * N, 500)}, {"x": (2, 512), "w": (512, 512)}])
def test_few_rows_of_small_weights_stay_apart(passes: Any, change: dict[str, tuple[int, int]]) -> None:
    given = {name: Tensor(bf16, shape) for name, shape in change.items()}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
        n = b.tensor(w).shape[0]
        y = b.dot(x, b.permute(w, dims=(1, 0)))
        parts = [b.slice(y, starts=(0, start), shape=(2, n // 2), steps=(1, 1)) for start in (0, n // 2)]
        return b.mul(*parts)

    text = str(passes.apply(PASSES, passes.built(given, body), rtol=0.02))
    assert text.count('"graph.dot"') == 1


@pytest.mark.parametrize(
    ("columns", "groups", "kernels"), [(8192, (64, 64), 1), (8192, (64, 32), 2), (512, (64, 64), 2)]
)
def test_products_of_one_row_with_codes(passes: Any, columns: int, groups: tuple[int, int], kernels: int) -> None:
    """Those of one kind, and of many columns, are one kernel."""
    depth = 128
    given = {"x": Tensor(bf16, (1, depth))}
    for name, group in zip("gu", groups, strict=True):
        given[name] = Tensor(u8, (columns, depth // 2))
        given[f"{name}_scales"] = Tensor(bf16, (columns, depth // group))

    def body(b: GraphBuilder, x: SSAValue, *parts: SSAValue) -> SSAValue:
        wide = [b.dequantize(*parts[at : at + 2], form="int4", dtype=bf16) for at in (0, 2)]
        gate, up = (b.dot(x, b.permute(each, dims=(1, 0))) for each in wide)
        return b.mul(b.silu(gate), up)

    found = str(passes.apply((FuseDequantization(), *PASSES), passes.built(given, body), rtol=0.05))
    assert found.count('"graph.group"') == kernels
