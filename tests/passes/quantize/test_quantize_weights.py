"""`quantize_weights`: which products read integers, and how near they stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import UnitAttr

from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.ir.attributes import to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, f64, i8, i32, tensor_of
from weft.ops.graph import FuncOp
from weft.ops.matmul.dot import Dot
from weft.passes.claim_libraries import ClaimLibraries
from weft.passes.convolution.convolve_by_matmul import ROWS_OF_WINDOWS
from weft.passes.hoist_constants import HoistConstants
from weft.passes.quantize.quantize_weights import QuantizeWeights
from weft.passes.simplify.eliminate_dead import EliminateDead

X, W = Tensor(f32, (5, 70)), Tensor(f32, (70, 65))


def product(passes: Any, x: Tensor = X, w: Tensor = W, constants: tuple[int, ...] = (1,), body: Any = None) -> Any:
    module = passes.built({"x": x, "w": w}, body or (lambda b, x, w: b.dot(x, w)))
    passes.function(module).attributes["constants"] = to_attribute(constants)
    return module


def dots(function: FuncOp) -> list[tuple[Any, Any]]:
    """The types of the products' second operands, and of their results."""
    found = [op for op in function.block.ops if isinstance(op, Dot)]
    return [(tensor_of(op.operands[1].type).dtype, tensor_of(op.results[0].type).dtype) for op in found]


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_stay_near(passes: Any, dynamic: bool) -> None:
    module = product(passes)
    QuantizeWeights(dynamic).apply(Context(), module)
    module.verify()
    function = passes.function(module)
    assert dots(function) == [(i8, i32) if dynamic else (f32, f32)]
    rng = generator()
    x, w = (rng.standard_normal([*map(int, t.shape)]).astype(np.float32) for t in (X, W))
    w[:, 3] = 0
    x[2] = 0
    (y,) = run(function, [x, w])
    expected = x.astype(np.float64) @ w.astype(np.float64)
    # Half a step for each element of either.
    steps = np.abs(w).max(0) / 254, np.abs(x).max(1, keepdims=True) / (2 * 127 * 257) * dynamic
    bound = np.abs(x).sum(1, keepdims=True) * steps[0] + steps[1] * (np.abs(w).sum(0) + 70 * steps[0])
    assert (np.abs(y - expected) <= bound * 1.001 + 1e-5).all()
    assert not y[2].any() and not y[:, 3].any()


def test_weights_that_underflow_and_are_no_numbers(passes: Any) -> None:
    module = product(passes)
    QuantizeWeights().apply(Context(), module)
    x, w = np.ones((5, 70), np.float32), np.ones((70, 65), np.float32)
    w[:, 0], w[2, 1], w[2, 2] = 1e-44, np.nan, np.inf
    (y,) = run(passes.function(module), [x, w])
    np.testing.assert_array_equal(y[:, 0], 0)
    assert np.isnan(y[:, 1:3]).all()
    np.testing.assert_allclose(y[:, 3:], 70, rtol=1e-6)


@pytest.mark.parametrize("dynamic", [False, True])
def test_integers_are_what_is_kept_and_no_library_takes_the_product(passes: Any, dynamic: bool) -> None:
    module = product(passes, x=Tensor(f32, (500 if dynamic else 5, 70)))
    for each in (QuantizeWeights(dynamic), HoistConstants(), EliminateDead(), ClaimLibraries()):
        each.apply(Context(), module)
    module.verify()
    function, prepare = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    made = [tensor_of(value.type) for value in prepare.returned.operands]
    assert sorted(made, key=str) == sorted([Tensor(i8, (70, 65)), Tensor(f32, (1, 65))], key=str)
    assert all("weft.claim" not in op.attributes for op in function.block.ops)


def quantized(passes: Any, x: np.ndarray, w: np.ndarray, dynamic: bool) -> np.ndarray:
    module = product(passes, Tensor(f32, x.shape), Tensor(f32, w.shape))
    QuantizeWeights(dynamic).apply(Context(), module)
    module.verify()
    (y,) = run(passes.function(module), [x, w])
    return y


def error(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("dynamic", [False, True])
def test_outliers_do_not_take_the_steps_of_their_neighbours(passes: Any, dynamic: bool) -> None:
    rng = generator()
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 192), (192, 65)))
    w[7], x[:, 100] = w[7] * 40, x[:, 100] * 40
    odd = np.arange(192) != 191  # 191 is odd: nothing is spread
    spread = error(quantized(passes, x, w, dynamic), x.astype(np.float64) @ w)
    left = error(quantized(passes, x[:, odd], w[odd], dynamic), x[:, odd].astype(np.float64) @ w[odd])
    assert spread < left / 2


@pytest.mark.parametrize("depth", [64, 80, 96, 72, 65])
@pytest.mark.parametrize("dynamic", [False, True])
def test_depths_that_are_spread_by_smaller_matrices_or_none(passes: Any, dynamic: bool, depth: int) -> None:
    rng = generator()
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, depth), (depth, 70)))
    assert error(quantized(passes, x, w, dynamic), x.astype(np.float64) @ w) < 0.01
    module = product(passes, Tensor(f32, x.shape), Tensor(f32, w.shape))
    QuantizeWeights(dynamic).apply(Context(), module)
    side = {64: 64, 80: 16, 96: 32}.get(depth)
    products = [op for op in passes.function(module).block.ops if isinstance(op, Dot)]
    sides = [tensor_of(op.operands[1].type).shape for op in products[:-1]]
    assert sides == ([(side, side)] * 2 if side else [])


def test_sums_of_equal_signs_do_not_overflow(passes: Any) -> None:
    y = quantized(passes, np.ones((2, 4097), np.float32), np.ones((4097, 64), np.float32), True)
    np.testing.assert_allclose(y, 4097, rtol=1e-6)


def test_products_of_too_great_depth_or_with_many_rows_stay(passes: Any) -> None:
    for dynamic, x, w in ((True, (1, 200_000), (200_000, 64)), (False, (9, 70), (70, 65))):
        module = product(passes, Tensor(f32, x), Tensor(f32, w))
        before = str(module)
        QuantizeWeights(dynamic).apply(Context(), module)
        assert str(module) == before


def test_one_weight_is_rounded_once(passes: Any) -> None:
    module = product(passes, body=lambda b, x, w: b.add(b.dot(x, w), b.dot(b.exp(x), w)))
    QuantizeWeights().apply(Context(), module)
    names = [op.name for op in passes.function(module).block.ops]
    assert names.count("graph.round") == 1
    assert names.count("graph.dot") == 2


def test_rows_of_unknown_number(passes: Any) -> None:
    module = product(passes, x=Tensor(f32, (symbol("n"), 70)))
    QuantizeWeights(dynamic=True).apply(Context(), module)
    module.verify()
    assert dots(passes.function(module)) == [(i8, i32)]


@pytest.mark.parametrize(
    ("x", "w", "constants"),
    [
        (Tensor(f32, (5, 70)), Tensor(f32, (70, 63)), (1,)),
        (Tensor(f32, (5, 63)), Tensor(f32, (63, 70)), (1,)),
        (Tensor(f64, (5, 70)), Tensor(f64, (70, 65)), (1,)),
        (X, W, (0,)),
        (X, W, (0, 1)),
        (X, W, ()),
    ],
)
def test_small_wide_and_changing_weights_stay(passes: Any, x: Tensor, w: Tensor, constants: Any) -> None:
    module = product(passes, x, w, constants)
    before = str(module)
    QuantizeWeights().apply(Context(), module)
    assert str(module) == before


def test_products_that_are_convolutions_stay(passes: Any) -> None:
    module = product(passes)
    for op in passes.function(module).block.ops:
        if isinstance(op, Dot):
            op.attributes[ROWS_OF_WINDOWS] = UnitAttr()
    before = str(module)
    QuantizeWeights(dynamic=True).apply(Context(), module)
    assert str(module) == before


def test_tables_that_a_program_computes_stay(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        table = b.cos(b.cast(b.iota(shape=(70, 65), dim=0, dtype=i32), dtype=f32))
        return b.add(b.dot(x, table), w)

    module = product(passes, w=Tensor(f32, (65,)), body=body)
    before = str(module)
    QuantizeWeights().apply(Context(), module)
    assert str(module) == before
