"""Short lines are put in order, and summed up, by comparing all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.graph import run
from weft.ir.types import DType, Tensor, bf16, dtype_of_numpy, f32, i8, i64, u8
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.dot.sum_small_dots import SumSmallDots, worth_summing
from weft.passes.simplify.order_by_comparing import OrderByComparing, worth_comparing


def rewritten(make: Any, *arrays: np.ndarray, passes: Any = OrderByComparing) -> tuple[list[Any], list[Any], set[str]]:
    """What a function gives before and after the pass, and the ops that it has then."""
    function = FuncOp.make("main", {f"x{i}": Tensor(dtype_of_numpy(a.dtype), a.shape) for i, a in enumerate(arrays)})
    b = GraphBuilder(function.block)
    made = make(b, *function.block.args)
    function.block.add_op(ReturnOp.make(list(made) if isinstance(made, tuple) else [made]))
    before = run(function, list(arrays))
    passes().apply(Context(), ModuleOp([function]))
    return before, run(function, list(arrays)), {op.name for op in function.block.ops}


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Some equal, some not finite."""
    x = np.random.default_rng(sum(shape)).integers(-5, 5, shape).astype(dtype)
    if x.dtype.kind == "f":
        x.flat[1::7], x.flat[2::9], x.flat[3::11] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((17,), 0), ((3, 20), 1), ((6, 2, 3), 0)])
def test_sorts(shape: tuple[int, ...], dim: int, descending: bool, dtype: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.sort(x, dim=dim, descending=descending, stable=True)

    before, after, ops = rewritten(make, numbers(shape, dtype))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert "graph.sort" not in ops


@pytest.mark.parametrize("largest", [False, True])
def test_the_greatest(largest: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.topk(x, k=4, dim=1, largest=largest, sorted=True)

    before, after, ops = rewritten(make, numbers((9, 32)))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert "graph.topk" not in ops


def test_running_sums_of_integers() -> None:
    before, after, ops = rewritten(lambda b, x: b.cumsum(x, dim=1), numbers((3, 33), np.int64))
    np.testing.assert_array_equal(before[0], after[0])
    assert "graph.cumsum" not in ops
    assert "graph.cumsum" in rewritten(lambda b, x: b.cumsum(x, dim=0), np.ones(9, np.float32))[2]


@pytest.mark.parametrize("by_sorting", [False, True])
def test_the_inverse_of_an_order_is_where_elements_have_gone(by_sorting: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        order = b.sort(x, dim=0, descending=False, stable=True)[1]
        if by_sorting:
            return b.sort(order, dim=0, descending=False, stable=True)[1]
        target = b.full(value=0, shape=(50,), dtype=i64)
        count = b.iota(shape=(50,), dim=0, dtype=i64, start=0, step=1)
        return b.index_put(target, order, count, dims=(0,), position=0, accumulate=False)

    before, after, ops = rewritten(make, numbers((50,), np.int64))
    np.testing.assert_array_equal(before[0], after[0])
    assert not ops & {"graph.sort", "graph.index_put"}


@pytest.mark.parametrize(("rows", "kinds"), [(6000, 3), (8192, 40)])
def test_long_lines_of_few_kinds_are_counted(rows: int, kinds: int) -> None:
    def make(b: Any, x: Any) -> Any:
        places = b.topk(x, k=2, dim=1, largest=True, sorted=True)[1]
        return b.sort(b.reshape(places, shape=(2 * rows,)), dim=0, descending=False, stable=True)

    before, after, ops = rewritten(make, np.random.default_rng(0).random((rows, kinds)).astype(np.float32))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert not ops & {"graph.sort", "graph.topk"}


@pytest.mark.parametrize(("kinds", "dtype"), [(200, i8), (200, bf16), (128, i8), (256, u8)])
def test_places_are_counted_where_their_type_holds_them(kinds: int, dtype: DType) -> None:
    def make(b: Any, x: Any) -> Any:
        places = b.cast(b.topk(x, k=100, dim=1, largest=True, sorted=True)[1], dtype=dtype)
        return b.sort(b.reshape(places, shape=(6400,)), dim=0, descending=False, stable=True)

    before, after, ops = rewritten(make, np.random.default_rng(0).random((64, kinds)).astype(np.float32))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert ("graph.sort" in ops) == (kinds == 200)


def test_long_lines_are_left_to_libraries() -> None:
    assert worth_comparing("sort", (4096,), 0)
    assert not worth_comparing("sort", (8192,), 0)
    assert worth_comparing("topk", (4096, 128), 1)
    assert not worth_comparing("topk", (1, 32000), 1)
    assert not worth_comparing("sort", (0,), 0)


def test_a_product_with_few_results_is_sums() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(bf16.numpy) for shape in ((4, 300), (32, 300)))

    def make(b: Any, x: Any, w: Any) -> Any:
        return b.dot(x, b.permute(w, dims=(1, 0)))

    before, after, ops = rewritten(make, x, w, passes=SumSmallDots)
    np.testing.assert_allclose(before[0].astype(np.float32), after[0].astype(np.float32), rtol=2**-7, atol=1e-2)
    assert "graph.dot" not in ops
    assert worth_summing(bf16, (1, 8), 4096)
    assert not worth_summing(bf16, (1, 4096), 4096)
    assert not worth_summing(f32, (1, 8), 4096)
    assert not worth_summing(bf16, (64, 32), 4096)
