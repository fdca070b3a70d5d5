"""Rows that are added up by index: in order of the indices, each result its own, and nothing in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.importer.import_graph import import_graph
from weft.lower.steps import CallStep, KernelStep
from weft.pipelines import compile_nvidia

from ..emulated_graphs import emulated

ROWS, RESULTS, COLUMNS = 600, 30, 32


def spread(count: int = ROWS, results: int = RESULTS) -> Tensor:
    return torch.randint(0, results, (count,))


def skewed() -> Tensor:
    """Nearly all rows are of one result, and results at both ends have none."""
    places = torch.full((ROWS,), 7)
    places[::40] = torch.arange(1, 16)
    return places


def check(function: Callable[..., Tensor], places: Tensor, *floats: Tensor) -> None:
    """Within the rounding of one result of eager's in f64, and the same bits twice."""
    compiled = emulated(function)
    found, again = compiled(places, *floats), compiled(places, *floats)
    torch.testing.assert_close(found, again, rtol=0, atol=0)
    wide = function(places, *(each.double() for each in floats))
    torch.testing.assert_close(
        found, wide.to(found.dtype), rtol=1e-5 if found.dtype == torch.float32 else 8e-3, atol=1e-4
    )


def put(places: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    return x.index_put((places,), rows, accumulate=True)


def put_new(places: Tensor, rows: Tensor) -> Tensor:
    return rows.new_zeros(RESULTS, *rows.shape[places.dim() :]).index_put((places,), rows, accumulate=True)


def add(places: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    return x.index_add(0, places, rows)


def scatter(places: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    return x.scatter_add(0, places[:, None].expand(-1, rows.shape[1]), rows)


def reduce(places: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    return x.scatter_reduce(0, places[:, None].expand(-1, rows.shape[1]), rows, "sum")


@pytest.mark.parametrize("places", [spread, skewed], ids=["spread", "skewed"])
@pytest.mark.parametrize("function", [put, add, scatter, reduce])
def test_rows_added_to_a_tensor(function: Callable[..., Tensor], places: Callable[[], Tensor]) -> None:
    check(function, places(), torch.randn(RESULTS, COLUMNS), torch.randn(ROWS, COLUMNS))


@pytest.mark.parametrize(
    ("columns", "dtype"), [(32, torch.float16), (40, torch.bfloat16), (33, torch.float64), (257, torch.bfloat16)]
)
def test_types_and_widths(columns: int, dtype: torch.dtype) -> None:
    check(put_new, spread(), torch.randn(ROWS, columns).to(dtype))


@pytest.mark.parametrize("count", [512, 700])
def test_one_result_has_all_rows(count: int) -> None:
    """Its stretches are added apart, and then read as sums."""
    check(put_new, torch.full((count,), 29), torch.randn(count, 64))


def test_places_of_32_bits_that_count_from_the_end_and_of_several_dimensions() -> None:
    check(put_new, (spread() - RESULTS).int(), torch.randn(ROWS, COLUMNS))
    check(put_new, spread().view(50, 12), torch.randn(50, 12, 4, 8))


def test_rows_that_are_a_part_of_others() -> None:
    """They are read where they lie."""
    check(lambda places, rows: put_new(places, rows[:, 8:40]), spread(), torch.randn(ROWS, 48))
    check(lambda places, rows: put_new(places, rows.t()), spread(), torch.randn(COLUMNS, ROWS))


def test_places_out_of_range_are_nobodys() -> None:
    """Where data is not checked; eager's call fails."""
    places, rows = spread(), torch.randn(ROWS, COLUMNS)
    places[5], places[400], places[401] = RESULTS, -RESULTS - 1, 1 << 40
    inside = (places >= -RESULTS) & (places < RESULTS)
    found = emulated(put_new, device_checks="off")(places, rows)
    torch.testing.assert_close(found, put_new(places[inside], rows[inside]))


def test_gradients_of_gathered_rows() -> None:
    def loss(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return torch.cat([x[source], x[target]], -1).square().sum()

    x, places = torch.randn(RESULTS, COLUMNS, requires_grad=True), (spread(), skewed())
    (found,) = torch.autograd.grad(emulated(loss)(x, *places), x)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(loss(wide, *places), wide)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)


def test_gradients_of_a_small_table() -> None:
    weight, places = torch.randn(RESULTS, COLUMNS, requires_grad=True), spread()
    (found,) = torch.autograd.grad(emulated(lambda w, i: F.embedding(i, w, 3).square().sum())(weight, places), weight)
    (expected,) = torch.autograd.grad(F.embedding(places, weight, 3).square().sum(), weight)
    torch.testing.assert_close(found, expected)


def made(function: Callable[..., object], *shapes: Sequence[int]) -> list[str]:
    """The steps of a function of places and rows on a GPU: calls by name, kernels by what they are of."""
    with FakeTensorMode():
        places = torch.empty(shapes[0], device="cuda", dtype=torch.int64)
        rows = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes[1:]]
        traced = make_fx(lambda *args: pytree.tree_leaves(function(*args)))(places, *rows)
    imported = import_graph(traced, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    steps = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan.steps
    return [s.target if isinstance(s, CallStep) else s.function for s in steps if isinstance(s, CallStep | KernelStep)]


def test_places_are_put_in_order_once_for_all_sums_by_them() -> None:
    steps = made(
        lambda i, x, y: (put_new(i, x), put_new(i, y.relu()), put_new(i, x + 1)), (4096,), (4096, 64), (4096, 64)
    )
    assert steps.count("aten::sort.stable") == 1
    assert sum(step.endswith("_sums") for step in steps) == 3


@pytest.mark.parametrize("shape", [(100, 8), (4096,), (4096, 4)])
def test_few_elements_and_short_rows_are_the_librarys(shape: tuple[int, ...]) -> None:
    assert "aten::sort.stable" not in made(put_new, shape[:1], shape)


def test_a_table_that_few_rows_are_added_to_is_the_librarys() -> None:
    def put_few(places: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return x.index_put((places,), rows, accumulate=True)

    assert "aten::sort.stable" not in made(put_few, (1024,), (50000, 64), (1024, 64))
