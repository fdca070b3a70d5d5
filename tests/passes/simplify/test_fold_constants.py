"""`fold_constants`: what depends on no argument is computed when the program is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.ir.expr import symbol
from weft.ir.types import Tensor, bf16, f32, f64, i8, i64
from weft.passes.simplify.constant_values import as_held, number_in, progression_in
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.fold_constants import FoldConstants
from weft.passes.simplify.simplify import Simplify

PASSES = (FoldConstants(), EliminateDead())
X = Tensor(f32, (2, 3))
s0 = symbol("s0")


def full(b: Any, value: float, dtype: Any = f32, shape: tuple[Any, ...] = ()) -> Any:
    return b.full(value=value, shape=shape, dtype=dtype)


def test_as_text(passes: Any) -> None:
    passes.rewrites_text(
        PASSES,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<4xi64>):
          %0 = "graph.iota"() {shape = [4], dim = 0, dtype = i64, start = 0, step = 1} : () -> tensor<4xi64>
          %1 = "graph.full"() {value = 1 : i64, shape = [], dtype = i64} : () -> tensor<i64>
          %2 = "graph.add"(%0, %1) : (tensor<4xi64>, tensor<i64>) -> tensor<4xi64>
          %3 = "graph.sub"(%2, %0) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
          %4 = "graph.mul"(%3, %x) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
          %5 = "graph.add"(%4, %2) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
          "graph.return"(%5) : (tensor<4xi64>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<4xi64>):
          %0 = "graph.iota"() {shape = [4], dim = 0, dtype = i64, start = 1, step = 1} : () -> tensor<4xi64>
          %1 = "graph.full"() {value = 1 : i64, shape = [4], dtype = i64} : () -> tensor<4xi64>
          %2 = "graph.mul"(%1, %x) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
          %3 = "graph.add"(%2, %0) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
          "graph.return"(%3) : (tensor<4xi64>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
    )


def test_numbers_of_any_size(passes: Any) -> None:
    passes.rewrites(
        PASSES,
        {"x": Tensor(f32, (s0, 3))},
        lambda b, x: b.add(x, b.sqrt(b.add(full(b, 8.0, shape=(s0, 1)), full(b, 1.0)))),
        lambda b, x: b.add(x, full(b, 3.0, shape=(s0, 1))),
        s0=4,
    )


def test_numbers_are_rounded_as_their_types_round(passes: Any) -> None:
    def before(b: Any, x: Any) -> Any:
        tenth = b.cast(full(b, 0.1, bf16), dtype=f64)
        return b.add(x, b.cast(tenth, dtype=f32))

    passes.rewrites(PASSES, {"x": X}, before, lambda b, x: b.add(x, full(b, as_held(0.1, bf16))))


def test_reductions_and_scans_of_constants(passes: Any) -> None:
    def before(b: Any, x: Any) -> Any:
        count = b.sum(full(b, 1.0, shape=(5, 3)), dims=(0,), keep=False)
        changes = b.cumsum(full(b, 0, i64, (3,)), dim=0)
        return b.add(b.mul(x, count), b.cast(changes, dtype=f32))

    passes.rewrites(
        PASSES,
        {"x": X},
        before,
        lambda b, x: b.add(b.mul(x, full(b, 5.0, shape=(3,))), full(b, 0.0, shape=(3,))),
    )


def test_the_mask_of_one_sequence(passes: Any) -> None:
    """What transformers computes to tell packed sequences apart is nothing, where there is one."""

    def before(b: Any, x: Any) -> Any:
        place = b.reshape(b.iota(shape=(6,), dim=0, dtype=i64), shape=(1, 6))
        first = b.sub(b.slice(place, starts=(0, 0), shape=(1, 1), steps=(1, 1)), full(b, 1, i64))
        longer = b.concat(first, place, dim=1)
        later = b.slice(longer, starts=(0, 1), shape=(1, 6), steps=(1, 1))
        earlier = b.slice(longer, starts=(0, 0), shape=(1, 6), steps=(1, 1))
        jump = b.ne(b.sub(later, earlier), full(b, 1, i64))
        sequence = b.cumsum(b.cast(jump, dtype=i64), dim=1)
        same = b.eq(b.reshape(sequence, shape=(6, 1)), sequence)
        past = b.le(place, b.reshape(place, shape=(6, 1)))
        return b.where(b.bitwise_and(past, same), x, full(b, 0.0))

    def after(b: Any, x: Any) -> Any:
        row = b.iota(shape=(1, 6), dim=1, dtype=i64, start=0, step=1)
        column = b.iota(shape=(6, 1), dim=0, dtype=i64, start=0, step=1)
        return b.where(b.le(row, column), x, full(b, 0.0))

    passes.rewrites((FoldConstants(), Simplify(), EliminateDead()), {"x": Tensor(f32, (6, 6))}, before, after)


def test_an_array_that_is_no_constant_stays(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        line = b.iota(shape=(3,), dim=0, dtype=f32)
        return b.add(x, b.mul(line, line))

    passes.rewrites(PASSES, {"x": X}, body, body)


@pytest.mark.parametrize("options", [{"most_elements": 5}, {"most_work": 5}])
def test_large_results_are_not_computed(passes: Any, options: dict[str, int]) -> None:
    def body(b: Any, x: Any) -> Any:
        line = b.iota(shape=(2, 3), dim=1, dtype=f32)
        return b.add(x, b.sub(line, line))

    passes.rewrites((FoldConstants(**options), EliminateDead()), {"x": X}, body, body)


def test_several_results(passes: Any) -> None:
    def before(b: Any, x: Any) -> Any:
        values, places = b.sort(full(b, 7, i64, (4,)), dim=0, descending=False, stable=True)
        return b.add(b.mul(x, values), places)

    def after(b: Any, x: Any) -> Any:
        sevens, places = full(b, 7, i64, (4,)), b.iota(shape=(4,), dim=0, dtype=i64, start=0, step=1)
        return b.add(b.mul(x, sevens), places)

    passes.rewrites(PASSES, {"x": Tensor(i64, (4,))}, before, after)


def test_what_has_no_elements(passes: Any) -> None:
    def before(b: Any, x: Any) -> Any:
        sums = b.reshape(b.sum(x, dims=(1,), keep=False), shape=(0, 1))
        return b.sum(b.div(x, sums), dims=(1,), keep=False), b.permute(x, dims=(1, 0))

    def after(b: Any, x: Any) -> Any:
        return full(b, 0.0, shape=(0,)), b.permute(x, dims=(1, 0))

    passes.rewrites(PASSES, {"x": Tensor(f32, (0, 5))}, before, after)


def test_what_is_one_number() -> None:
    assert number_in(np.array([0.0, -0.0], np.float32)) is None
    assert np.isnan(number_in(np.full((2, 2), np.nan, np.float32)) or 0)
    assert number_in(np.zeros((0, 3), np.int64)) == 0
    assert number_in(np.array([True, True])) is True


def test_what_counts() -> None:
    assert progression_in(np.array([[5, 3, 1]] * 2)) == (1, 5, -2)
    assert progression_in(np.array([[0], [1]])) == (0, 0, 1)
    assert progression_in(np.array([[0, 1], [1, 2]])) is None
    assert progression_in(np.array([0, 1, 3])) is None
    assert progression_in(np.array([0.0, 1.0])) is None
    assert progression_in(np.array([126, 127, -128], np.int8)) == (0, 126, 1)
    assert progression_in(np.array([[[0, 1], [0, 1]], [[0, 1], [1, 0]]], i8.numpy)) is None
