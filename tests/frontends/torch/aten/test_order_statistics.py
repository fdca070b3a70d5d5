"""Elements chosen by their rank or their number, places in sorted sequences and histograms: by Weft, as eager does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.errors import DataError, PlaceError

Function = Callable[..., Any]


def compiled(function: Function, **options: Any) -> Function:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"strict": True, "cache": False}, **options)


def check(function: Function, *tensors: Tensor, **options: Any) -> None:
    """Nothing is left to torch, and what comes out is eager's to the bit."""
    torch.testing.assert_close(
        compiled(function, **options)(*tensors), function(*tensors), rtol=0, atol=0, equal_nan=True
    )


def spoiled() -> Tensor:
    """Numbers without ties, with a NaN or two in some lines and in all of others."""
    x = torch.randn(5, 9)
    x[1, 3] = x[1, 5] = x[2, 0] = math.nan
    return x


def test_ranks() -> None:
    x = spoiled()
    check(lambda x: (x.kthvalue(3), x.kthvalue(2, 0, keepdim=True)), x)
    check(lambda x: (x.median(1), x.t().median(1, keepdim=True), x.median()), x)
    check(lambda x: (x.nanmedian(1), x.nanmedian(), (x + math.nan).nanmedian(1)[0]), x)


def test_ranks_of_integers_and_of_little() -> None:
    whole = torch.randint(0, 4, (5, 9))
    check(lambda x: (x.median(1)[0], x.nanmedian(0)[0]), whole)
    check(lambda x: (x.median(0), x.kthvalue(1), x.mode()), torch.tensor(3.0))
    check(lambda x: (x.median(), x.nanmedian(), x.sum(0)), torch.zeros(0, 3))
    check(lambda x: x.median(1), torch.zeros(0, 3))
    values, places = compiled(lambda x: x.kthvalue(4))(whole)
    assert torch.equal(whole.gather(1, places[:, None])[:, 0], values)  # of equals any may be taken


def test_modes() -> None:
    check(lambda x: x.mode(0, keepdim=True), torch.randint(0, 3, (6, 11)))
    check(lambda x: x.mode(1), torch.randn(3, 4))


def test_symbolic_sizes() -> None:
    run = compiled(lambda x: (x.median(0), x.mode(1)[0]), dynamic=True)
    for rows, columns in ((5, 7), (8, 4)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(run(x), (x.median(0), x.mode(1)[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_places_in_sorted_sequences(dtype: torch.dtype) -> None:
    line = torch.randint(-9, 9, (13,)).sort()[0].to(dtype)
    values = torch.randint(-12, 12, (4, 6)).to(dtype)
    check(lambda b, v: (torch.searchsorted(b, v), torch.bucketize(v, b, right=True, out_int32=True)), line, values)
    check(lambda b: (torch.searchsorted(b, 3, side="right"), torch.bucketize(0.5, b)), line)
    lines = torch.randint(-9, 9, (4, 5)).to(dtype)
    check(lambda b, v: torch.searchsorted(b, v, sorter=b.argsort(stable=True)), lines, values)
    check(lambda b, v: torch.searchsorted(b.t().contiguous(), v), lines.sort(0)[0].t(), values)


def test_sequences_that_are_not_sorted_are_halved_as_by_eager() -> None:
    values = torch.tensor([math.nan, -math.inf, 0.3, math.inf])
    check(lambda b, v: (torch.searchsorted(b, v), torch.searchsorted(b[:0], v)), torch.randn(31), values)


def test_sequences_of_symbolic_length() -> None:
    run = compiled(lambda b, v: torch.searchsorted(b, v, right=True), dynamic=True)
    for length in (3, 40):
        line, values = torch.randn(length).sort()[0], torch.randn(length - 1)
        assert torch.equal(run(line, values), torch.searchsorted(line, values, right=True))


def test_an_order_out_of_range_is_an_error() -> None:
    run = compiled(lambda b, v, s: torch.searchsorted(b, v, sorter=s))
    with pytest.raises(PlaceError):
        run(torch.randn(3), torch.randn(2), torch.tensor([0, 1, 3]))


def test_histograms() -> None:
    x = torch.randn(4, 50)
    check(lambda x: (torch.histc(x), torch.histc(x, 7, -1, 1), torch.histc(x, 500, 0, 2), torch.histc(x.t(), 9)), x)
    check(lambda x: torch.histc(x.float(), 8, 0, 7), torch.randint(0, 8, (60,)))  # tokens for each of 8 experts
    check(lambda x: (torch.histc(x, 5), torch.histc(x[:0], 5)), torch.full((4,), 2.0))
    check(lambda x: torch.histc(x, 4, -1, 1), torch.tensor([math.nan, math.inf, -1.0, 1.0]))
    with pytest.raises(DataError, match="not finite"):
        compiled(lambda x: torch.histc(x, 4))(torch.tensor([math.nan, 1.0]))


def test_a_processor_adds_each_number_to_its_bin_of_more_than_a_few() -> None:
    """Where each bin looks at all numbers, a hundred bins take six times as long as eager."""
    for bins, adds in ((100, True), (4, False)):
        explained = weft.explain(lambda x, bins=bins: torch.histc(x, bins, -3, 3), torch.randn(500))
        assert ("graph.index_put" in explained.records[0].programs["graph"]) == adds
    many = torch.zeros(2**24 + 8)
    counts = compiled(lambda x: torch.histc(x, 6, -1, 1))(many)
    assert counts.tolist() == [0, 0, 0, 2**24 + 8, 0, 0]


POOLS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "line": (lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), (3, 2, 10)),
    "plane": (lambda x: F.adaptive_max_pool2d(x, (5, 4), return_indices=True), (2, 3, 13, 9)),
    "whole plane": (lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True), (2, 3, 6, 6)),
    "more than there are": (lambda x: F.adaptive_max_pool2d(x, (7, 3), return_indices=True), (3, 4, 5)),
    "transposed": (lambda x: F.adaptive_max_pool2d(x.transpose(2, 3), (2, 3), return_indices=True), (2, 3, 7, 5)),
    "space": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True), (2, 4, 5, 3)),
    "no image": (lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True), (0, 3, 4, 4)),
}


@pytest.mark.parametrize("name", POOLS)
def test_adaptive_maxima_and_their_gradients(name: str) -> None:
    function, shape = POOLS[name]
    check(function, torch.randn(shape))
    check(function, torch.full(shape, -math.inf))
    x, twin = (torch.randn(shape).requires_grad_() for _ in range(2))
    twin.data.copy_(x.data)
    values, expected = compiled(function)(x)[0], function(twin)[0]
    direction = torch.randn_like(values)
    torch.testing.assert_close(*(torch.autograd.grad(y, z, direction) for y, z in ((values, x), (expected, twin))))


LINES = 131
"""Elements of a line that is not sorted: the element of a rank is selected."""
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
RANKED: dict[str, Function] = {
    "median": lambda x: torch.median(x, 1),
    "nanmedian": lambda x: torch.nanmedian(x, 1),
    "first": lambda x: torch.kthvalue(x, 1, 1),
    "later": lambda x: torch.kthvalue(x, 100, 1),
    "last": lambda x: torch.kthvalue(x, LINES, 1),
}


def long_lines(dtype: torch.dtype) -> Tensor:
    """Lines with ties; of floats with a NaN or many, of infinities, of NaNs and of negative zeros."""
    x = (torch.randn(6, LINES) * 60).to(dtype)
    if dtype.is_floating_point:
        x[0, 3] = x[2] = x[3, :70] = math.nan
        x[1, 4:9], x[1, 50:], x[4] = -math.inf, math.inf, -0.0
    else:
        x[0, ::3], x[1, ::3] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x


@pytest.mark.parametrize("dtype", TYPES)
def test_ranks_in_long_lines(dtype: torch.dtype) -> None:
    x = long_lines(dtype)
    found = compiled(lambda x: [rank(x) for rank in RANKED.values()])(x)
    for (value, place), rank in zip(found, RANKED.values(), strict=True):
        wanted = rank(x)[0]
        torch.testing.assert_close(value, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(x.gather(1, place[:, None])[:, 0].isnan(), wanted.isnan())
        torch.testing.assert_close(x.gather(1, place[:, None])[:, 0], wanted, rtol=0, atol=0, equal_nan=True)
    check(lambda x: (x.median(), x.nanmedian(), x[:, 4:].t().median(0)[0]), x[4:])


def test_gradients_of_ranks_in_long_lines() -> None:
    x = torch.randn(3, LINES, requires_grad=True)
    wanted = torch.autograd.grad(x.median(1)[0].sum() + x.kthvalue(9, 1)[0].sum() + x.median(), x)
    run = compiled(lambda x: x.median(1)[0].sum() + x.kthvalue(9, 1)[0].sum() + x.median())
    torch.testing.assert_close(torch.autograd.grad(run(x), x), wanted)


def test_ranks_in_lines_of_symbolic_length() -> None:
    run = compiled(lambda x: (x.median(1), x.nanmedian(0)[0]), dynamic=True)
    for rows, columns in ((5, 7), (80, 131)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(run(x), (x.median(1), x.nanmedian(0)[0]))
