"""`scale_after_dots`: norms before products of few rows."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, bf16, f16, f32
from weft.ops.graph import GraphBuilder
from weft.passes.dot.scale_after_dots import ScaleAfterDots
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.simplify.eliminate_dead import EliminateDead

ROWS, K, N = 3, 256, 384
PASSES = (ScaleAfterDots(), EliminateDead(), GroupIntoKernels(products=2))


def arguments(rows: int = ROWS, k: int = K, dtype: Any = bf16) -> dict[str, Tensor]:
    shapes = {"x": (rows, k), "y": (rows, k), "w": (k,), "m": (k, N), "n": (k, N)}
    return {name: Tensor(dtype, shape) for name, shape in shapes.items()}


def factor(b: GraphBuilder, wide: SSAValue, dims: tuple[int, ...] = (1,)) -> SSAValue:
    total = b.sum(b.mul(wide, wide), dims=dims, keep=True)
    return b.rsqrt(b.add(b.mul(total, b.full_like(total, 1 / K)), b.full_like(total, 1e-5)))


def normed(b: GraphBuilder, h: SSAValue, w: SSAValue) -> SSAValue:
    wide = b.cast(h, dtype=f32)
    narrow = b.cast(b.mul(wide, factor(b, wide)), dtype=b.tensor(h).dtype)
    return b.mul(narrow, w)


def one(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> list[SSAValue]:
    h = b.add(x, y)
    return [h, b.dot(normed(b, h, w), m)]


def two(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> list[SSAValue]:
    rows = normed(b, b.add(x, y), w)
    return [b.dot(rows, m), b.neg(b.dot(rows, n))]


def wide_weights(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> SSAValue:
    wide = b.cast(b.add(x, y), dtype=f32)
    rows = b.mul(b.cast(w, dtype=f32), b.mul(factor(b, wide), wide))
    return b.dot(b.cast(rows, dtype=bf16), m)


def of_tokens(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> SSAValue:
    wide = b.cast(b.reshape(b.add(x, y), shape=(ROWS, 1, K)), dtype=f32)
    rows = b.cast(b.mul(wide, factor(b, wide, (1, 2))), dtype=bf16)
    return b.dot(b.reshape(b.mul(rows, w), shape=(ROWS, K)), m)


@pytest.mark.parametrize(("body", "groups"), [(one, 2), (two, 3), (wide_weights, 3), (of_tokens, 2)])
def test_the_factor_is_found_by_the_product(passes: Any, body: Any, groups: int) -> None:
    text = str(passes.apply(PASSES, passes.built(arguments(), body), rtol=0.03))
    assert text.count('"graph.group"') == groups
    product = text[text.index('"graph.dot"') :]
    assert (
        "graph.rsqrt" in product and "graph.rsqrt" not in text[: text.index('"graph.dot"')].rpartition('"graph.gr')[0]
    )


def read_elsewhere(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> list[SSAValue]:
    rows = normed(b, b.add(x, y), w)
    return [b.dot(rows, m), b.neg(rows)]


def with_bias(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> SSAValue:
    return b.dot(b.add(normed(b, x, w), y), m)


def given_factor(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> SSAValue:
    first = b.cast(b.slice(y, starts=(0, 0), shape=(ROWS, 1), steps=(1, 1)), dtype=f32)
    return b.dot(b.cast(b.mul(b.cast(x, dtype=f32), first), dtype=bf16), m)


def of_other_rows(b: GraphBuilder, x: SSAValue, y: SSAValue, w: SSAValue, m: SSAValue, n: SSAValue) -> SSAValue:
    half = b.slice(y, starts=(0, 0), shape=(ROWS, K // 2), steps=(1, 1))
    scale = factor(b, b.cast(half, dtype=f32))
    return b.dot(b.cast(b.mul(b.cast(x, dtype=f32), scale), dtype=bf16), m)


@pytest.mark.parametrize("body", [read_elsewhere, with_bias, given_factor, of_other_rows])
def test_what_is_not_a_factor_of_products_alone_stays(passes: Any, body: Any) -> None:
    module = passes.built(arguments(), body)
    before = str(module)
    assert str(passes.apply(ScaleAfterDots(), module)) == before


OTHERS = {"range": arguments(dtype=f16), "rows": arguments(rows=32), "length": arguments(rows=16, k=2048)}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS.keys())
def test_ranges_and_sizes(passes: Any, given: dict[str, Tensor]) -> None:
    module = passes.built(given, one)
    before = str(module)
    assert str(passes.apply(ScaleAfterDots(), module)) == before
