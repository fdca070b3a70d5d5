"""Mistakes in data that eager finds while it runs are found, and named with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.errors import DivisionError, PlaceError, PowerError

X = torch.arange(12.0).reshape(4, 3)
at = torch.tensor

PLACES: dict[str, tuple[Callable[..., Any], Tensor, Tensor]] = {
    "embedding": (lambda i: F.embedding(i, X), at([0, 3]), at([0, 4])),
    "index": (lambda i: X[i], at([-4, 3]), at([-5])),
    "two indices": (lambda i: X[i, i], at([-3, 2]), at([3])),
    "index_select": (lambda i: X.index_select(1, i), at([2, 0]), at([-1])),
    "gather": (lambda i: X.gather(1, i), at([[2], [0]]), at([[3], [0]])),
    "take": (lambda i: X.take(i), at([-12, 11]), at([12])),
    "scatter": (lambda i: X.scatter(0, i, 1.0), at([[3, 0, 1]]), at([[4, 0, 1]])),
    "scatter_add": (lambda i: X.scatter_add(0, i, X[:1]), at([[3, 0, 1]]), at([[-1, 0, 1]])),
    "index_put": (lambda i: X.index_put((i,), X[0]), at([-1, 2]), at([7])),
    "index_add": (lambda i: X.index_add(0, i, X[:2]), at([1, 3]), at([1, 4])),
    "index_copy": (lambda i: X.index_copy(0, i, X[:2]), at([1, 3]), at([1, 4])),
    "index_add, from the end": (lambda i: X.index_add(0, i, X[:2], alpha=2), at([1, 3]), at([1, -1])),
    "index_copy, from the end": (lambda i: X.index_copy(1, i, X[:, :2]), at([1, 2]), at([1, -1])),
    "index_fill": (lambda i: X.index_fill(0, i, 1.0), at([1, -1]), at([1, 4])),
    "put": (lambda i: X.put(i, X[0]), at([-12, 11, 3]), at([0, 12, 1])),
    "embedding_bag, sum": (lambda i: F.embedding_bag(i, X, at([0, 1]), mode="sum"), at([0, 3]), at([0, 4])),
    "embedding_bag, mean": (lambda i: F.embedding_bag(i, X, at([0, 1]), mode="mean"), at([0, 3]), at([0, -1])),
    "embedding_bag, max": (lambda i: F.embedding_bag(i, X, at([0, 1]), mode="max"), at([0, 3]), at([4, 0])),
    "first offset": (lambda i: F.embedding_bag(at([0, 3]), X, i, mode="max"), at([0, 2]), at([1, 2])),
    "last offset": (lambda i: F.embedding_bag(at([0, 3]), X, i, mode="sum"), at([0, 2]), at([0, 3])),
    "negative offset": (lambda i: F.embedding_bag(at([0, 3]), X, i, mode="mean"), at([0, 2]), at([0, -1])),
    "descending offset": (lambda i: F.embedding_bag(at([0, 3]), X, i, mode="sum"), at([0, 1, 2]), at([0, 2, 1])),
    "cross_entropy": (lambda i: F.cross_entropy(X, i), at([0, 2, 1, -100]), at([0, 3, 1, 1])),
}


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    function, good, bad = PLACES[name]
    run = compiled(function)
    torch.testing.assert_close(run(good), function(good))
    kinds: Any = RuntimeError
    if name != "descending offset":  # of which eager reads memory of others, and mostly, not always, finds it wrong
        with pytest.raises((IndexError, RuntimeError)) as eager:
            function(bad)
        kinds = eager.type
    with pytest.raises(kinds, match=r"(out of range|offset).*\n.*test_checks.py:\d+") as found:
        run(bad)
    assert isinstance(found.value, PlaceError | IndexError)
    torch.testing.assert_close(run(good), function(good))


@pytest.mark.parametrize("function", [lambda a, b: a // b, lambda a, b: a % b, torch.fmod])
def test_integers_divided_by_zero(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    run = compiled(function)
    torch.testing.assert_close(run(at([7, -7]), at([2, 3])), function(at([7, -7]), at([2, 3])))
    with pytest.raises(DivisionError):
        run(at([7, -7]), at([2, 0]))


def test_floats_divided_by_zero() -> None:
    run = compiled(lambda a, b: a // b)
    assert run(torch.ones(2), torch.zeros(2)).isinf().all()


def test_training_and_symbolic_sizes() -> None:
    model = torch.nn.Embedding(5, 3)
    run = compiled(lambda i: model(i).sum())
    for count in (2, 3, 7):
        run(torch.arange(count) % 5).backward()
    with pytest.raises(PlaceError):
        run(at([1, 5, 0, 2]))


@pytest.mark.parametrize("function", [lambda a: a // 0, lambda a: a % 0, lambda a: torch.fmod(a, 0)])
def test_integers_divided_by_a_constant_zero(function: Callable[[Tensor], Tensor]) -> None:
    run = compiled(function)
    with pytest.raises(DivisionError, match=r"divided by zero.*\n.*test_checks.py:\d+"):
        run(at([7, -7]))
    assert compiled(function)(at([], dtype=torch.int64)).shape == (0,)  # there is nothing to divide


def test_negative_powers_of_integers() -> None:
    with pytest.raises(PowerError, match=r"no power of -1"):
        compiled(lambda a: a**-1)(at([2, 3]))
    torch.testing.assert_close(compiled(lambda a: a**-1)(at([2.0, 4.0])), at([0.5, 0.25]))


def put(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x = x.clone()
    x[mask] = values
    return x


def scatter(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return x.masked_scatter(mask, values)


MASK = at([True, False, True, False])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "fits", "does_not"),
    [(put, [(2, 3), (1, 3), (3,), (2, 1)], [(3, 3), (4, 3), (0, 3)]), (scatter, [(6,), (7,), (2, 3)], [(5,), (0,)])],
)
def test_as_many_values_as_a_mask_has_true_elements(
    function: Callable[..., Tensor], fits: list[tuple[int, ...]], does_not: list[tuple[int, ...]], dynamic: bool
) -> None:
    mask = MASK if function is put else MASK[:, None]
    torch.compiler.reset()
    run = torch.compile(function, backend="weft", options={"cache": False}, dynamic=dynamic)
    for shape in fits:
        values = torch.rand(shape)
        torch.testing.assert_close(run(X, mask, values), function(X, mask, values))
    for shape in does_not:
        with pytest.raises(RuntimeError):
            function(X, mask, torch.rand(shape))
        with pytest.raises(RuntimeError, match=r"true elements of the mask|shape mismatch"):
            run(X, mask, torch.rand(shape))


EMPTY: dict[str, tuple[Callable[..., Any], tuple[int, ...], Tensor]] = {
    "index": (lambda x, i: x[i], (0, 3), at([0])),
    "last index": (lambda x, i: x[:, i], (3, 0), at([0])),
    "two indices": (lambda x, i: x[i, i], (0, 3), at([0])),
    "behind a slice": (lambda x, i: x[2:][i], (2, 3), at([0])),
    "gather": (lambda x, i: x.gather(0, i), (0, 3), at([[0, 0, 0]])),
    "index_select": (lambda x, i: x.index_select(0, i), (0, 3), at([0])),
    "embedding": (lambda x, i: F.embedding(i, x), (0, 3), at([0])),
    "embedding_bag": (lambda x, i: F.embedding_bag(i, x, at([0])), (0, 3), at([0])),
    "embedding_bag, max": (lambda x, i: F.embedding_bag(i, x, at([0]), mode="max"), (0, 3), at([0])),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 0), (0, 3), at([[0, 0, 0]])),
    "put": (lambda x, i: x.put(i, torch.ones(1)), (0, 3), at([0])),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(())), (0, 3), at([0])),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (0, 3), at([[0, 0, 0]])),
    "index_copy": (lambda x, i: x.index_copy(0, i, torch.ones(1, 3)), (0, 3), at([0])),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (0, 3), at([0])),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (1, 0), at([0])),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, False) for name in EMPTY), ("index", True), ("behind a slice", True)]
)
def test_nothing_is_read_from_a_dimension_of_size_0(name: str, dynamic: bool) -> None:
    function, shape, places = EMPTY[name]
    x = torch.zeros(shape)
    with pytest.raises((IndexError, RuntimeError)):
        function(x, places)
    torch.compiler.reset()
    with pytest.raises(PlaceError, match="of size 0"):
        torch.compile(function, backend="weft", options={"cache": False}, dynamic=dynamic)(x, places)


@pytest.mark.parametrize("function", [put, scatter])
def test_no_values_for_no_true_element(function: Callable[..., Tensor]) -> None:
    x = torch.rand(12)
    torch.testing.assert_close(compiled(function)(x, torch.zeros(12, dtype=torch.bool), torch.zeros(0)), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[:, i],
        lambda x, i: x.index_add(1, i, x[:, :1]),
        lambda x, i: x.index_copy(1, i, x[:, :1]),
        lambda x, i: x.index_fill(1, i, 1.0),
        lambda x, i: x.gather(1, i.expand(0, 1)),
        lambda x, i: torch.ops.aten.index_put(x, [None, i], x.new_ones(())),
    ],
)
def test_places_that_nothing_is_read_from_may_be_anywhere(function: Callable[..., Tensor]) -> None:
    x, i = torch.zeros(0, 3), at([7])
    assert compiled(function)(x, i).shape == function(x, i).shape


@pytest.mark.parametrize(
    "update",
    [
        lambda cache, i, new: cache.index_copy_(0, i, new),
        lambda cache, i, new: cache.index_add_(0, i, new),
        lambda cache, i, new: cache.index_put_((i,), new),
        lambda cache, i, new: cache.scatter_(0, i[:, None].expand(2, 3), new),
        lambda cache, i, new: cache[1:].index_copy_(0, i, new),
        lambda cache, i, new: cache.mul_(2.0).index_copy_(0, i, new),
    ],
)
def test_arguments_are_checked_before_they_are_written(update: Callable[..., Tensor]) -> None:
    def function(cache: Tensor, i: Tensor, new: Tensor) -> Tensor:
        update(cache, i, new)
        return new * 2

    run = compiled(function)
    cache = torch.rand(4, 3)
    expected = cache.clone()
    new = torch.rand(2, 3)
    run(cache, at([2, 0]), new)
    function(expected, at([2, 0]), new)
    torch.testing.assert_close(cache, expected)
    before = cache.clone()
    for bad in (at([0, 4]), at([0, 9])):
        with pytest.raises(PlaceError, match="out of range"):
            run(cache, bad, new)
        torch.testing.assert_close(cache, before, rtol=0, atol=0)
    run(cache, at([1, 0]), new)
    function(expected, at([1, 0]), new)
    torch.testing.assert_close(cache, expected)


def test_they_are_also_checked_first_when_a_call_is_timed() -> None:
    def function(cache: Tensor, i: Tensor, new: Tensor) -> Tensor:
        cache.index_copy_(0, i, new)
        return cache.sum()

    run = compiled(function)
    cache, new = torch.rand(4, 3), torch.rand(1, 3)
    run(cache, at([0]), new)
    before = cache.clone()
    with weft.profile(), pytest.raises(PlaceError):
        run(cache, at([4]), new)
    torch.testing.assert_close(cache, before, rtol=0, atol=0)


def test_weights_of_a_bag_have_the_type_of_its_table() -> None:
    run = compiled(lambda i, w: F.embedding_bag(i, X, at([0]), mode="sum", per_sample_weights=w))
    torch.testing.assert_close(run(at([0, 3]), at([1.0, 2.0])), X[:1] + 2 * X[3:])
    with pytest.raises(RuntimeError, match="same type"):
        run(at([0, 3]), at([1, 2]))


@pytest.mark.parametrize("wrong", [1.5, -0.25, float("nan")])
def test_what_are_no_probabilities_have_no_cross_entropy(wrong: float) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(x, target)

    run = torch.compile(loss, backend="weft", options={"cache": False, "fallback": "error"})
    x, target = torch.rand(6, 5, requires_grad=True), torch.rand(6, 5)
    torch.testing.assert_close(run(x, target), loss(x, target))
    torch.testing.assert_close(*(torch.autograd.grad(each(x, target), x) for each in (run, loss)))
    for each in (run, loss):
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            each(torch.tensor([0.5, wrong]), torch.ones(2))
