"""Split-K: which products are cut, into which parts, and what these add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.seeds import generator
from weft.ir.types import DType, Tensor, bf16, f16
from weft.lower.machine import gpu_machine
from weft.lower.schedule.dot_model import Matmuls, estimates, split_of
from weft.testing.kernels import Trial, group_of, run_interpreted

GPU = gpu_machine()


def product(layout: str) -> Callable[..., Any]:
    """A product whose operands lie as the letters say: n along K and N, or t turned."""

    def body(b: Any, x: Any, w: Any) -> Any:
        x = b.permute(x, dims=(1, 0)) if layout[0] == "t" else x
        return b.dot(x, b.permute(w, dims=(1, 0)) if layout[1] == "t" else w)

    return body


def shapes_of(layout: str, m: int, n: int, k: int) -> list[tuple[int, int]]:
    return [(k, m) if layout[0] == "t" else (m, k), (n, k) if layout[1] == "t" else (k, n)]


def trial(layout: str, m: int, n: int, k: int, dtype: DType = bf16) -> Trial:
    tensors = [Tensor(dtype, shape) for shape in shapes_of(layout, m, n, k)]
    return Trial.of(group_of(tensors, product(layout)), "product", GPU)


def random(shapes: Sequence[tuple[int, ...]], dtype: DType = bf16) -> list[np.ndarray]:
    draw = generator()
    return [draw.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


def error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(float) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize(
    ("layout", "m", "n", "k"),
    [
        ("nn", 29, 93, 3201),  # rows that begin anywhere, and a last part of one column
        ("tn", 150, 55, 1811),
        ("nt", 70, 24, 4070),
        ("tt", 130, 65, 2000),
        ("nt", 72, 72, 1304),  # rows that TMA brings, and a last part of 24 columns
        ("nn", 200, 136, 4000),
    ],
)
def test_parts_of_any_length_add_up(layout: str, m: int, n: int, k: int, dtype: DType) -> None:
    found, arrays = trial(layout, m, n, k, dtype), random(shapes_of(layout, m, n, k), dtype)
    sums, _ = found.lowered.calls
    assert found.lowered.scratch[0].shape[1:] == (m, n)
    assert k % sums.kernel.op.grid.data[0], "parts are not of the same length"
    x, w = (a.astype(float).T if turned == "t" else a.astype(float) for a, turned in zip(arrays, layout, strict=True))
    (result,) = run_interpreted(found, arrays)
    assert error(result, x @ w) < 4e-3


def test_what_follows_and_a_second_product_are_of_whole_sums() -> None:
    m, n, k = 96, 72, 3000

    def gated(b: Any, x: Any, w: Any, v: Any, c: Any) -> Any:
        return b.add(b.mul(b.silu(b.dot(x, w)), b.dot(x, v)), c)

    shapes = [(m, k), (k, n), (k, n), (m, n)]
    found = Trial.of(group_of([Tensor(bf16, shape) for shape in shapes], gated), "product", GPU)
    assert [tensor.shape[1:] for tensor in found.lowered.scratch] == [(m, n)] * 2
    x, w, v, c = arrays = random(shapes)
    (result,) = run_interpreted(found, arrays)
    left, right = (x.astype(float) @ each.astype(float) for each in (w, v))
    assert error(result, left / (1 + np.exp(-left)) * right + c.astype(float)) < 4e-3


def test_several_matrices_are_cut_too() -> None:
    shapes = [(3, 80, 2100), (3, 2100, 48)]
    found = Trial.of(group_of([Tensor(bf16, shape) for shape in shapes], lambda b, x, w: b.dot(x, w)), "product", GPU)
    assert found.lowered.scratch[0].shape[1:] == (3, 80, 48)
    x, w = arrays = random(shapes)
    (result,) = run_interpreted(found, arrays)
    assert error(result, x.astype(float) @ w.astype(float)) < 4e-3


@pytest.mark.parametrize(
    "products",
    [Matmuls(4096, 4096, 4096), Matmuls(128, 128, 128), Matmuls(1024, 4096, 1024), Matmuls(64, 64, 100, loaded=True)],
    ids=str,
)
def test_products_that_fill_the_machine_or_are_short_are_whole(products: Matmuls) -> None:
    assert split_of(products, GPU) is None


@pytest.mark.parametrize(
    "products",
    [
        Matmuls(768, 768, 16384),
        Matmuls(161, 1377, 12093),
        Matmuls(550, 55, 4812, loaded=True),
        Matmuls(29, 93, 3201, loaded=True),
    ],
    ids=str,
)
def test_few_tiles_of_a_long_k_are_cut(products: Matmuls) -> None:
    split, whole = split_of(products, GPU), estimates(products, GPU)[0]
    assert split is not None and split.seconds < whole.seconds
    assert split.depth % 64 == 0 and (split.count - 1) * split.depth < products.k <= split.count * split.depth


def test_threads_that_load_have_registers_for_square_tiles_alone() -> None:
    assert {each.sides[:2] for each in estimates(Matmuls(4000, 4000, 100, loaded=True), GPU)} == {(64, 64), (128, 128)}


@pytest.mark.parametrize(
    ("layout", "n", "k", "loaded"),
    [
        ("nn", 520, 70, True),
        ("nn", 520, 72, False),
        ("tn", 520, 70, False),
        ("tn", 521, 72, True),
        ("tt", 521, 72, False),
    ],
)
def test_whether_tma_brings_rows_is_seen_from_where_they_begin(layout: str, n: int, k: int, loaded: int) -> None:
    (call,) = trial(layout, 512, n, k).lowered.calls
    assert ("by loads" in str(call.kernel.schedule)) == bool(loaded)
