"""`simplify` and its rules: each rewrite as text, and that it changes no bit of a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from weft.backends.reference.graph import run
from weft.ir.expr import symbol
from weft.ir.types import Tensor, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from weft.passes.simplify.arithmetic_rules import holds
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.simplify import Simplify

PASSES = (Simplify(), EliminateDead())
X = Tensor(f32, (2, 3, 4))
s0 = symbol("s0")


def test_the_walk_sees_simplified_operands(passes: Any) -> None:
    passes.rewrites_text(
        PASSES,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<2x3x4xf32>):
          %0 = "graph.reshape"(%x) {shape = [6, 4]} : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
          %1 = "graph.reshape"(%0) {shape = [24]} : (tensor<6x4xf32>) -> tensor<24xf32>
          %2 = "graph.full"() {value = 1.0 : f64, shape = [], dtype = f32} : () -> tensor<f32>
          %3 = "graph.mul"(%1, %2) : (tensor<24xf32>, tensor<f32>) -> tensor<24xf32>
          %4 = "graph.reshape"(%3) {shape = [2, 3, 4]} : (tensor<24xf32>) -> tensor<2x3x4xf32>
          %5 = "graph.exp"(%4) : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
          "graph.return"(%5) : (tensor<2x3x4xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<2x3x4xf32>):
          %0 = "graph.exp"(%x) : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
          "graph.return"(%0) : (tensor<2x3x4xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
    )


def part(b: Any, x: Any, number: int) -> Any:
    return b.slice(x, starts=(0, 1, number), shape=(3, 4, 1), steps=(1, 1, 1))


def turned(b: Any, x: Any) -> Any:
    return b.permute(b.reshape(x, shape=(3, 4)), dims=(1, 0))


def cube(b: Any, x: Any) -> Any:
    return b.mul(b.mul(x, x), x)


def full(b: Any, value: float, dtype: Any = f32, shape: tuple[Any, ...] = ()) -> Any:
    return b.full(value=value, shape=shape, dtype=dtype)


def numbers(b: Any, size: int, start: int, step: int) -> Any:
    return b.iota(shape=(size,), dim=0, dtype=i64, start=start, step=step)


CASES: dict[str, tuple[Tensor, Callable[..., Any], Callable[..., Any]]] = {
    "rows of rows are taken at once": (
        X,
        lambda b, x: b.take(b.take(x, numbers(b, 5, 1, -1), dim=0), numbers(b, 3, 4, -2), dim=0),
        lambda b, x: b.take(x, b.take(numbers(b, 5, 1, -1), numbers(b, 3, 4, -2), dim=0), dim=0),
    ),
    "reshapes join": (
        X,
        lambda b, x: b.reshape(b.reshape(x, shape=(6, 4)), shape=(3, 8)),
        lambda b, x: b.reshape(x, shape=(3, 8)),
    ),
    "permutes join": (
        X,
        lambda b, x: b.permute(b.permute(x, dims=(1, 2, 0)), dims=(1, 0, 2)),
        lambda b, x: b.permute(x, dims=(2, 1, 0)),
    ),
    "permutes cancel": (X, lambda b, x: b.permute(b.permute(x, dims=(1, 2, 0)), dims=(2, 0, 1)), lambda b, x: x),
    "a permute of ones is a reshape": (
        Tensor(f32, (1, 3, 4)),
        lambda b, x: b.permute(x, dims=(1, 2, 0)),
        lambda b, x: b.reshape(x, shape=(3, 4, 1)),
    ),
    "broadcasts join": (
        Tensor(f32, (3, 1)),
        lambda b, x: b.broadcast(b.broadcast(x, shape=(3, 4)), shape=(2, 3, 4)),
        lambda b, x: b.broadcast(x, shape=(2, 3, 4)),
    ),
    "a broadcast to ones is a reshape": (
        Tensor(f32, (3, 4)),
        lambda b, x: b.broadcast(x, shape=(1, 3, 4)),
        lambda b, x: b.reshape(x, shape=(1, 3, 4)),
    ),
    "slices join": (
        Tensor(f32, (20, 5)),
        lambda b, x: b.slice(
            b.slice(x, starts=(3, 0), shape=(8, 5), steps=(2, 1)), starts=(1, 4), shape=(3, 2), steps=(2, -1)
        ),
        lambda b, x: b.slice(x, starts=(5, 4), shape=(3, 2), steps=(4, -1)),
    ),
    "a slice of all": (X, lambda b, x: b.slice(x, starts=(0, 0, 0), shape=(2, 3, 4), steps=(1, 1, 1)), lambda b, x: x),
    "a reversal stays": (
        Tensor(f32, (4,)),
        lambda b, x: b.slice(x, starts=(3,), shape=(4,), steps=(-1,)),
        lambda b, x: b.slice(x, starts=(3,), shape=(4,), steps=(-1,)),
    ),
    "a slice of a count": (
        Tensor(i64, (4,)),
        lambda b, x: b.add(
            x, b.slice(b.iota(shape=(9,), dim=0, dtype=i64, start=2, step=3), starts=(1,), shape=(4,), steps=(2,))
        ),
        lambda b, x: b.add(x, b.iota(shape=(4,), dim=0, dtype=i64, start=5, step=6)),
    ),
    "views of a constant": (
        X,
        lambda b, x: b.add(x, b.permute(b.broadcast(b.reshape(full(b, 2.5), shape=(1, 1)), shape=(4, 3)), dims=(1, 0))),
        lambda b, x: b.add(x, full(b, 2.5, shape=(3, 4))),
    ),
    "a concat of one": (
        Tensor(f32, (3, 4)),
        lambda b, x: b.concat(x, b.slice(x, starts=(0, 0), shape=(0, 4), steps=(1, 1)), dim=0),
        lambda b, x: x,
    ),
    "parts that are seen in another way": (
        Tensor(f32, (3, 5, 2)),
        lambda b, x: b.concat(*(b.reshape(turned(b, part(b, x, n)), shape=(2, 2, 3, 1)) for n in range(2)), dim=3),
        lambda b, x: b.reshape(
            b.permute(b.slice(x, starts=(0, 1, 0), shape=(3, 4, 2), steps=(1, 1, 1)), dims=(1, 0, 2)),
            shape=(2, 2, 3, 2),
        ),
    ),
    "parts in another order stay": (
        Tensor(f32, (3, 5, 2)),
        lambda b, x: b.concat(part(b, x, 1), part(b, x, 0), dim=2),
        lambda b, x: b.concat(part(b, x, 1), part(b, x, 0), dim=2),
    ),
    "no padding": (X, lambda b, x: b.pad(x, low=(0, 0, 0), high=(0, 0, 0), value=1.0), lambda b, x: x),
    "a sum over ones": (
        Tensor(f32, (2, 1, 4)),
        lambda b, x: b.sum(x, dims=(1,), keep=False),
        lambda b, x: b.reshape(x, shape=(2, 4)),
    ),
    "a maximum over nothing": (X, lambda b, x: b.max(x, dims=(), keep=False), lambda b, x: x),
    "times one": (X, lambda b, x: b.mul(full(b, 1.0), x), lambda b, x: x),
    "times one of a wider shape": (
        Tensor(f32, (4,)),
        lambda b, x: b.mul(x, full(b, 1.0, shape=(3, 1))),
        lambda b, x: b.broadcast(x, shape=(3, 4)),
    ),
    "minus zero": (X, lambda b, x: b.sub(x, full(b, 0.0)), lambda b, x: x),
    "plus a negative zero": (X, lambda b, x: b.add(x, full(b, -0.0)), lambda b, x: x),
    "plus zero stays": (X, lambda b, x: b.add(x, full(b, 0.0)), lambda b, x: b.add(x, full(b, 0.0))),
    "plus zero of integers": (Tensor(i64, (4,)), lambda b, x: b.add(x, full(b, 0, i64)), lambda b, x: x),
    "sums of integers join": (
        Tensor(i8, (4,)),
        lambda b, x: b.add(b.add(x, full(b, 100, i8)), full(b, 100, i8)),
        lambda b, x: b.add(x, full(b, -56, i8)),
    ),
    "products of floats stay": (
        X,
        lambda b, x: b.mul(b.mul(x, full(b, 0.1)), full(b, 3.0)),
        lambda b, x: b.mul(b.mul(x, full(b, 0.1)), full(b, 3.0)),
    ),
    "over a power of two": (X, lambda b, x: b.div(x, full(b, -64.0)), lambda b, x: b.mul(x, full(b, -1 / 64))),
    "over three": (X, lambda b, x: b.div(x, full(b, 3.0)), lambda b, x: b.div(x, full(b, 3.0))),
    "over the least power": (
        X,
        lambda b, x: b.div(x, full(b, 2.0**-127)),
        lambda b, x: b.div(x, full(b, 2.0**-127)),
    ),
    "a square": (X, lambda b, x: b.pow(x, full(b, 2.0)), lambda b, x: b.mul(x, x)),
    "a cube": (Tensor(i64, (4,)), lambda b, x: b.pow(x, full(b, 3, i64)), lambda b, x: b.mul(b.mul(x, x), x)),
    "a narrow cube": (
        Tensor(bf16, (4,)),
        lambda b, x: b.pow(x, full(b, 3.0, bf16)),
        lambda b, x: b.cast(cube(b, b.cast(x, dtype=f32)), dtype=bf16),
    ),
    "casts join": (
        Tensor(bf16, (4,)),
        lambda b, x: b.cast(b.cast(x, dtype=f32), dtype=f64),
        lambda b, x: b.cast(x, dtype=f64),
    ),
    "casts cancel": (Tensor(f16, (4,)), lambda b, x: b.cast(b.cast(x, dtype=f32), dtype=f16), lambda b, x: x),
    "a cast that rounds stays": (
        X,
        lambda b, x: b.cast(b.cast(x, dtype=bf16), dtype=f32),
        lambda b, x: b.cast(b.cast(x, dtype=bf16), dtype=f32),
    ),
    "where it is always so": (
        X,
        lambda b, x: b.where(full(b, True, boolean, (3, 1)), x, full(b, 0.0)),
        lambda b, x: x,
    ),
    "where it is never so": (
        Tensor(f32, (4,)),
        lambda b, x: b.where(full(b, False, boolean, (3, 1)), full(b, 0.0), x),
        lambda b, x: b.broadcast(x, shape=(3, 4)),
    ),
    "and True": (Tensor(boolean, (4,)), lambda b, x: b.bitwise_and(full(b, True, boolean), x), lambda b, x: x),
    "or True": (
        Tensor(boolean, (4,)),
        lambda b, x: b.logical_or(x, full(b, True, boolean)),
        lambda b, x: full(b, True, boolean, (4,)),
    ),
    "not not": (Tensor(boolean, (4,)), lambda b, x: b.logical_not(b.logical_not(x)), lambda b, x: x),
    "minus minus": (X, lambda b, x: b.neg(b.neg(x)), lambda b, x: x),
    "symbolic sizes": (
        Tensor(f32, (s0, 12)),
        lambda b, x: b.reshape(b.permute(b.reshape(x, shape=(s0, 3, 1, 4)), dims=(0, 2, 1, 3)), shape=(s0, 12)),
        lambda b, x: x,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule(passes: Any, case: str) -> None:
    tensor, before, after = CASES[case]
    passes.rewrites(PASSES, {"x": tensor}, before, after, s0=5)


@pytest.mark.parametrize(
    "case",
    [
        "times one",
        "minus zero",
        "plus a negative zero",
        "plus zero stays",
        "over a power of two",
        "minus minus",
        "a square",
    ],
)
def test_rules_keep_special_numbers(passes: Any, case: str) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3.5, 3e38], np.float32)
    module = passes.built({"x": Tensor(f32, special.shape)}, CASES[case][1])
    (wanted,) = run(passes.function(module), [special])
    Simplify().apply(Context(), module)
    (found,) = run(passes.function(module), [special])
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (f64, f32, True),
        (f32, f64, False),
        (f16, bf16, False),
        (bf16, f16, False),
        (f32, i16, True),
        (f32, i32, False),
        (f64, i32, True),
        (bf16, i8, True),
        (bf16, u8, True),
        (i16, u8, True),
        (u8, i8, False),
        (i8, u8, False),
        (i64, boolean, True),
        (boolean, i8, False),
    ],
)
def test_which_types_hold_which(wide: Any, narrow: Any, expected: bool) -> None:
    assert holds(wide, narrow) is expected
