"""Kernels for a GPU run as blocks of threads on the simulator, beside the interpreter of the tile kernels they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import LoweringError, ShapeError
from weft.ir.expr import Size, symbol
from weft.ir.types import DType, Tensor, bf16, boolean, dtype_of_numpy, f16, f32, f64, i8, i32, i64, tensor_of
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY, Elementwise, Movement, OpSpec, Reduction
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.op_cases import op_cases
from weft.testing.simulated import run_simulated

WARP_COUNTS = [1, 2, 4, 8, 16, 32]
GPU = gpu_machine()
SMALL = replace(gpu_machine(2, clusters=False), tile_elements=64, row_elements=128, lanes=8)
"""A GPU on which small tensors are large."""


def checked(
    body: Callable[..., Any], arrays: Sequence[np.ndarray], warps: int | None, symbols: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Results of the simulator, which those of the interpreter confirm up to the order of sums.

    Sizes that `symbols` has are symbolic.
    """
    names: dict[int, Size] = {size: symbol(name) for name, size in (symbols or {}).items()}
    tensors = [Tensor(dtype_of_numpy(a.dtype), tuple(names.get(n, n) for n in a.shape)) for a in arrays]
    found: list[np.ndarray] = []
    for machine in (SMALL, GPU):
        trial = Trial.of(group_of(tensors, body), "simulated", machine)
        found = run_simulated(trial, arrays, symbols, warps=warps)
        for actual, expected in zip(found, run_interpreted(trial, arrays, symbols), strict=True):
            agree(actual, expected)
    return found


def agree(actual: np.ndarray, expected: np.ndarray) -> None:
    if not dtype_of_numpy(actual.dtype).is_float:
        np.testing.assert_array_equal(actual, expected)
        return
    wide, exact = actual.astype(np.float64), expected.astype(np.float64)
    epsilon = float(ml_dtypes.finfo(actual.dtype).eps)
    scale = float(np.abs(exact[np.isfinite(exact)]).max(initial=0))
    np.testing.assert_allclose(wide, exact, rtol=16 * epsilon, atol=16 * epsilon * scale)


def numbers(shape: Sequence[int], dtype: DType = f32, seed: int = 0) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every order."""
    rng = np.random.default_rng(seed)
    low, high = (0, 2) if dtype == boolean else (-4, 5)
    return rng.integers(low, high, shape).astype(dtype.numpy)


def normal(shape: Sequence[int], dtype: DType = f32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def last(x: Any) -> tuple[int]:
    return (len(tensor_of(x.type).shape) - 1,)


def softmax(b: Any, x: Any) -> Any:
    e = b.exp(b.sub(x, b.max(x, dims=last(x), keep=True)))
    return b.div(e, b.sum(e, dims=last(x), keep=True))


def normalized(b: Any, x: Any) -> Any:
    centred = b.sub(x, b.max(x, dims=last(x), keep=True))
    spread = b.sum(b.mul(centred, centred), dims=last(x), keep=True)
    return b.mul(centred, b.rsqrt(b.add(spread, b.exp(spread))))


def row_sums(b: Any, x: Any) -> Any:
    return b.sum(x, dims=last(x), keep=False)


def column_sums(b: Any, x: Any) -> Any:
    return b.sum(x, dims=(0,), keep=False)


def places_of_extremes(b: Any, x: Any) -> Any:
    return b.argmax(x, dims=last(x), keep=False), b.argmin(x, dims=last(x), keep=False)


def places_in_columns(b: Any, x: Any) -> Any:
    return b.argmax(x, dims=(0,), keep=False)


def transposed(b: Any, x: Any) -> Any:
    return b.neg(b.permute(x, dims=(1, 0)))


def with_transposed(b: Any, x: Any) -> Any:
    return b.sub(x, b.permute(x, dims=(1, 0)))


def transposed_sums(b: Any, x: Any) -> Any:
    y = b.neg(b.permute(x, dims=(1, 0)))
    return y, b.sum(y, dims=(1,), keep=False)


@pytest.mark.parametrize("length", [1, 2, 3, 31, 33, 100, 257, 1000, 1023, 2049, 4097, 5000])
@pytest.mark.parametrize("body", [softmax, normalized])
def test_rows(body: Callable[..., Any], length: int) -> None:
    for warps in {None, WARP_COUNTS[length % 6], WARP_COUNTS[(length + 3) % 6]}:
        checked(body, [normal((3, length))], warps)


@pytest.mark.parametrize("length", [1, 5, 64, 333, 5000, 20001])
def test_sums_of_rows_count_each_element_once(length: int) -> None:
    x = numbers((2, length))
    for warps in (None, 1, 32):
        (y,) = checked(row_sums, [x], warps)
        np.testing.assert_array_equal(y, x.sum(1))


@pytest.mark.parametrize("warps", [None, *WARP_COUNTS])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (37, 1), (70, 130)])
def test_sums_of_columns_count_each_element_once(shape: tuple[int, int], warps: int | None) -> None:
    x = numbers(shape)
    (y,) = checked(column_sums, [x], warps)
    np.testing.assert_array_equal(y, x.sum(0))


@pytest.mark.parametrize("warps", WARP_COUNTS)
@pytest.mark.parametrize("dtype", [f32, f64, bf16, i64, i8], ids=str)
def test_extremes_are_the_first_of_equal_ones(dtype: DType, warps: int) -> None:
    x = numbers((5, 300), dtype)
    if dtype.is_float:
        x[1, [17, 230]] = np.nan
        x[2, :] = np.nan
        x[3, :] = -np.inf
    checked(places_of_extremes, [x], warps)
    checked(places_in_columns, [np.ascontiguousarray(x[:, :40].T)], warps)


@pytest.mark.parametrize("warps", [None, *WARP_COUNTS])
@pytest.mark.parametrize("shape", [(1, 9), (33, 47), (64, 64), (130, 70)])
def test_transposes(shape: tuple[int, int], warps: int | None) -> None:
    (y,) = checked(transposed, [x := normal(shape)], warps)
    np.testing.assert_array_equal(y, -x.T)
    checked(transposed_sums, [numbers(shape)], warps)
    if shape[0] == shape[1]:
        checked(with_transposed, [normal(shape)], warps)


@pytest.mark.parametrize("dims", [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_transposes_of_three_axes(dims: tuple[int, int, int]) -> None:
    for dtype, warps in ((f32, None), (i8, 4), (bf16, 16)):
        x = numbers((5, 18, 33), dtype)
        (y,) = checked(lambda b, x: b.neg(b.permute(x, dims=dims)), [x], warps)
        np.testing.assert_array_equal(y, -x.transpose(dims))


@pytest.mark.parametrize(
    "shapes",
    [((40, 70), (70,)), ((40, 70), (40, 1)), ((1, 70), (40, 1)), ((3, 5, 7), (5, 1)), ((1,), (300,)), ((), (9, 9))],
)
@pytest.mark.parametrize("dtype", [f32, bf16, f64, i8, i32, boolean], ids=str)
def test_broadcasting(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType) -> None:
    arrays = [numbers(shape, dtype, seed) for seed, shape in enumerate(shapes)]

    for warps in (None, 2, 8):
        checked(lambda b, x, y: b.ne(x, y) if dtype == boolean else b.mul(x, y), arrays, warps)


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i64, i8, boolean], ids=str)
def test_reductions_of_every_type(dtype: DType) -> None:
    names = ["any", "all"] if dtype == boolean else ["sum", "prod", "max", "min"]
    for name in names:
        for warps in (1, 8):
            checked(lambda b, x, n=name: b.emit(n, x, dims=(1,), keep=False), [numbers((4, 77), dtype)], warps)
            checked(lambda b, x, n=name: b.emit(n, x, dims=(0, 1), keep=False), [numbers((13, 40), dtype)], warps)


@pytest.mark.parametrize("warps", [None, 1, 16])
def test_rows_at_places_that_are_data(warps: int | None) -> None:
    table = normal((50, 37))
    places = np.random.default_rng(1).integers(0, 50, (6, 5))
    (y,) = checked(lambda b, t, i: b.exp(b.index(t, i, dims=(0,), position=0)), [table, places], warps)
    assert y.shape == (6, 5, 37)


@pytest.mark.parametrize("sizes", [(1, 2), (3, 5), (33, 257), (5, 300)])
def test_sizes_that_are_symbols(sizes: tuple[int, int]) -> None:
    symbols = {"s0": sizes[0], "s1": sizes[1]}
    for body in (softmax, transposed, column_sums, places_of_extremes):
        for warps in (None, 8):
            checked(body, [normal(sizes)], warps, symbols)


KINDS = (Elementwise, Movement, Reduction)
OPS = [spec for spec in REGISTRY if issubclass(spec.cls, KINDS) and spec.name != "convolution"]
DYNAMIC = [spec for spec in OPS if not issubclass(spec.cls, Elementwise) or spec.name in ("add", "where", "cast")]


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_ops_mean_as_threads_what_the_graph_says(spec: OpSpec) -> None:
    found: list[str] = []
    for number, case in enumerate(op_cases(spec)):
        warps = [None, 1, 2, 4, 8][number % 5]
        trial = case.trial(SMALL if number % 3 == 0 else GPU)
        found.append(case.complaint(run_simulated(trial, case.arrays(), warps=warps)))
    assert not (wrong := [text for text in found if text]), "\n".join(wrong)


@pytest.mark.parametrize("spec", DYNAMIC, ids=lambda spec: spec.name)
def test_ops_of_symbolic_sizes_mean_as_threads_what_the_graph_says(spec: OpSpec) -> None:
    found: list[str] = []
    for case in op_cases(spec, dynamic=True):
        if case.dtype != case.sample.dtypes[0]:
            continue
        try:
            trial = case.trial(GPU)
        except ShapeError:
            continue  # parameters like the shape of a reshape do not change with the operand's sizes
        found.append(case.complaint(run_simulated(trial, case.arrays(), case.symbols)))
    assert not (wrong := [text for text in found if text]), "\n".join(wrong)


def test_what_a_gpu_cannot_do_is_said_when_layouts_are_given() -> None:
    trial = Trial.of(group_of([Tensor(f32, (4, 5))], lambda b, x: b.sort(x, dim=1, descending=False)[0]), "sorted")
    with pytest.raises(LoweringError, match="has no layout on a GPU"):
        run_simulated(trial, [normal((4, 5))])


@pytest.mark.parametrize("length", [16385, 40000])
def test_rows_that_a_cluster_holds(length: int) -> None:
    for body in (softmax, places_of_extremes):
        tensors = [Tensor(f32, (2, length))]
        trial = Trial.of(group_of(tensors, body), "clustered", GPU)
        x = normal((2, length))
        x[1, length // 3 :: length // 3] = 9
        for actual, expected in zip(run_simulated(trial, [x]), run_interpreted(trial, [x]), strict=True):
            agree(actual, expected)
