"""Derivatives where rules that hold almost everywhere fail: at zeros, at ties, at kinks; against torch's in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import weft
from weft.errors import UnsupportedError
from weft.func import grad, jvp

X = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 6.0], dtype=torch.float64)
Y = torch.tensor([0.0, 1.0, -1.0, 0.5, 0.5, 2.0, 1.0, 0.0, 6.0], dtype=torch.float64)
W, V = torch.rand(9, dtype=torch.float64) + 0.5, torch.randn(9, dtype=torch.float64)

CURVED: dict[str, Callable[[Tensor], Tensor]] = {
    "huber": lambda x: F.huber_loss(x, Y, reduction="none"),
    "narrow huber": lambda x: F.huber_loss(x, Y, reduction="none", delta=0.5),
    "smooth l1": lambda x: F.smooth_l1_loss(x, Y, reduction="none", beta=0.5),
    "logsigmoid": F.logsigmoid,
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, Y.clamp(0, 1), reduction="none"),
    "norm": lambda x: (x - Y).norm() * W,
    "normalize": lambda x: F.normalize(x, dim=0),
    "i0": torch.special.i0,
    "i1": torch.special.i1,
}
KINKED: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-1, 3),
    "clamp by tensors": lambda x: x.clamp(Y - 1, Y + 1),
    "clamp_min": lambda x: x.clamp_min(0.5),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "xlogy": lambda x: torch.xlogy(x, Y.abs()),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ("i0", "i1") else name for name in CURVED]
)
def test_second_derivatives_at_zeros(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return (CURVED[name](x) * W).sum()

    found = jvp(grad(loss), (X,), (V,))[1]
    torch.testing.assert_close(found, torch.func.vjp(torch.func.grad(loss), X)[1](V)[0])


@pytest.mark.parametrize("name", KINKED)
def test_first_derivatives_at_kinks(name: str) -> None:
    torch.testing.assert_close(
        grad(lambda x: (KINKED[name](x) * W).sum())(X), torch.func.grad(lambda x: (KINKED[name](x) * W).sum())(X)
    )


@pytest.mark.parametrize("order", [1, 2, 3])
def test_norms_of_zeros_have_no_slope(order: int) -> None:
    x = torch.stack([X, 0 * X])
    for dims in (None, 0, 1):
        for each in (x, x[1:]):
            args: Any = (lambda x: torch.linalg.vector_norm(x, order, dims).sum(),)  # noqa: B023
            torch.testing.assert_close(grad(*args)(each), torch.func.grad(*args)(each))


NAN, INF = float("nan"), float("inf")
EQUAL = torch.full((4, 2), 2.0, dtype=torch.float64)
ROWS = torch.randn(5, 3, dtype=torch.float64)
SIDES = torch.tensor([0.0, 1, 0.3, 0], dtype=torch.float64)
SINGULAR: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    **{f"cdist {p}": (lambda x, p=p: torch.cdist(x, x, p), ROWS) for p in (0, 0.5, 1, 1.5, 2, 3, INF)},
    "cdist of matrices": (lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"), ROWS.round()),
    "cdist of batches": (lambda x: torch.cdist(x.view(2, 1, 5, 3), x.view(2, 5, 3)[:1]), ROWS.repeat(2, 1)),
    **{f"pdist {p}": (lambda x, p=p: F.pdist(x, p), ROWS.repeat(2, 1)) for p in (1, 2, 3)},
    **{f"dist {p}": (lambda x, p=p: torch.dist(x, x.detach(), p), ROWS) for p in (0, 0.5, 1, 1.5, 2, 3, INF)},
    **{f"pairwise {p}": (lambda x, p=p: F.pairwise_distance(x, x.detach(), p, 0), ROWS) for p in (-1, 0.5, 2, 3)},
    **{
        f"norm {p}": (lambda x, p=p: torch.linalg.vector_norm(x, p, 1), torch.cat([ROWS, 0 * ROWS, ROWS.relu()]))
        for p in (-INF, -2, -1, 0, 0.5, 1, 1.5, 2, 4.5, INF)
    },
    "std": (lambda x: x.std(), EQUAL),
    "std of columns": (lambda x: x.std(0, correction=0), torch.cat([EQUAL, ROWS[:4]], 1)),
    "std and mean": (lambda x: torch.cat(torch.std_mean(x, 1, keepdim=True)), EQUAL),
    "relu": (F.relu, torch.tensor([1, NAN, -1, 0], dtype=torch.float64)),
    "xlogy": (lambda x: torch.xlogy(x, x), 0 * ROWS),
    "xlogy of y": (lambda x: torch.xlogy(torch.tensor([0.0, 0, 2, 1]), x), torch.tensor([0, -1, 3, 0.0]).double()),
    "xlogy of a number": (lambda x: torch.xlogy(x, 0) + torch.xlogy(x, 3), 0 * ROWS),
    "bce": (lambda x: F.binary_cross_entropy(x, SIDES), torch.tensor([0.0, 1, 0.2, 1]).double()),
    "bce of targets": (lambda x: F.binary_cross_entropy(SIDES * 0.4 + 0.1, x), SIDES),
    "median": (lambda x: x.median(), EQUAL),
    "median of some": (lambda x: x.median(), torch.tensor([1.0, 3, 2, 2, 2, 7]).double()),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGULAR)
def test_gradients_where_a_form_divides_zero_by_zero(name: str) -> None:
    function, x = SINGULAR[name]
    weights = torch.rand_like(function(x))
    (mine, value), (eager, expected) = (
        each(lambda x: (weights * function(x)).sum(), x) for each in (_gradient_of, _torchs_gradient_of)
    )
    torch.testing.assert_close(value, expected, equal_nan=True)
    torch.testing.assert_close(mine, eager, equal_nan=True)


def _gradient_of(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    value, gradient = weft.func.value_and_grad(function)(x)
    return gradient, value


def _torchs_gradient_of(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = function(x)
    (value + x[:0].sum()).backward()  # of what is constant, too
    gradient = x.grad
    assert gradient is not None
    return gradient, value.detach()


@pytest.mark.parametrize("order", [1.5, 2, 3])
def test_second_derivatives_of_distances(order: float) -> None:
    def loss(x: Tensor) -> Tensor:
        apart = torch.linalg.vector_norm(x.unsqueeze(0) - x.unsqueeze(1), order, -1)
        return (apart * apart.detach()).sum()

    def by_cdist(x: Tensor) -> Tensor:
        apart = torch.cdist(x, x, order)
        return (apart * apart.detach()).sum()

    expected = torch.func.vjp(torch.func.grad(loss), ROWS)[1](ROWS.flip(0))[0]
    found = jvp(grad(by_cdist), (ROWS,), (ROWS.flip(0),))[1]
    assert not found.isnan().any()
    torch.testing.assert_close(found[expected.isfinite()], expected[expected.isfinite()])


def test_probabilities_are_checked() -> None:
    with pytest.raises(weft.errors.DataError, match="between 0 and 1"):
        grad(lambda x: F.binary_cross_entropy(x, torch.ones(3)))(torch.tensor([0.5, 1.5, 0.1]))


@pytest.mark.parametrize("point", [(0.0, 2.0), (0.0, 0.0), (1.0, 3.0), (0.0, -1.0)])
def test_slopes_of_xlogy_are_logarithms_at_zero_too(point: tuple[float, float]) -> None:
    x, y = (torch.tensor([value], dtype=torch.float64) for value in point)
    mine, eager = (each(lambda x, y: torch.xlogy(x, y).sum())(x, y) for each in (grad, torch.func.grad))
    torch.testing.assert_close(mine, eager, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
        (torch.int32, torch.float64),
        (torch.int32, torch.bfloat16),
    ],
)
def test_bounds_without_dimensions_do_not_promote(kind: torch.dtype, bound: torch.dtype) -> None:
    x, low = X.to(kind), torch.tensor(0.25, dtype=bound)
    for function in (lambda x: torch.clamp(x, min=low), lambda x: torch.clamp(x, low, Y.to(kind))):
        torch.testing.assert_close(weft.vmap(function)(x[None])[0], function(x))


CLAMPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "from below": lambda x, y: x.clamp_min(y),
    "from above": lambda x, y: torch.clamp(x, max=y),
    "between": lambda x, y: torch.clamp(x, y, y + 1),
    "between the same": lambda x, y: torch.clamp(x, y, 1 * y),
    "the wrong way round": lambda x, y: torch.clamp(x, y, y - 1),
    "numbers": lambda x, y: torch.clamp(x, 0.0, 2.0) + 0 * y,
}


@pytest.mark.parametrize("name", CLAMPS)
def test_gradients_of_clamp_at_nan(name: str) -> None:
    nan = float("nan")
    x, y = torch.tensor([nan, 1, nan, 1, 4, 2]), torch.tensor([0, nan, nan, 3, 1, 2])
    mine, eager = (each(lambda x, y: CLAMPS[name](x, y).sum(), (0, 1))(x, y) for each in (grad, torch.func.grad))
    torch.testing.assert_close(mine, eager, equal_nan=True)


@pytest.mark.parametrize("function", [torch.atan2, torch.copysign, torch.pow])
def test_tangents_at_zero_are_no_product_of_zero_and_infinity(function: Any) -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    assert jvp(lambda x: function(x, zero), (zero,), (zero + 1,))[1].tolist() == [0, 0]


@pytest.mark.parametrize("rank", [1, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (2, 3))])
def test_tangents_of_places_that_are_written_twice(rank: int) -> None:
    unpool: Any = getattr(F, f"max_unpool{rank}d")
    x = torch.randn(2, 3, *(2,) * rank, dtype=torch.float64)
    indices = torch.randint(0, 4**rank, x.shape)
    indices[..., 1] = indices[..., 0]
    torch.compiler.reset()
    compiled = torch.compile(lambda x: unpool(x, indices, 2), backend="weft", options={"fallback": "error"})
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.cos())
        mine, eager = (forward_ad.unpack_dual(each).tangent for each in (compiled(dual), unpool(dual, indices, 2)))
    torch.testing.assert_close(mine, eager)
    torch.testing.assert_close(jvp(lambda x: unpool(x, indices, 2), (x,), (x.cos(),))[1], eager)


def test_copies_of_what_a_function_closes_over_can_be_written_to() -> None:
    def writing(x: Tensor) -> Tensor:
        copy = Y.clone()
        copy[1:3] = x[1:3].sin()
        return F.cosine_similarity(copy.add_(x), Y, 0)

    before = Y.clone()
    torch.testing.assert_close(grad(writing)(X), torch.func.grad(writing)(X))
    assert torch.equal(Y, before)


def test_writes_to_what_a_function_closes_over_are_refused_with_their_line() -> None:
    outside = Y.clone()

    def writing(x: Tensor) -> Tensor:
        return outside.add_(x).sum()

    with pytest.raises(UnsupportedError, match="writes to a tensor from outside") as caught:
        weft.grad(writing)(X)
    assert f"{__file__}:{writing.__code__.co_firstlineno + 1}" in str(caught.value)
    assert torch.equal(outside, Y)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda p: p.add_(1),
    "an element": lambda p: p.__setitem__(0, 4.0),
    "as a result": lambda p: torch.add(p, 1, out=p),
    "detached": lambda p: p.detach().add_(1),
    "part of it detached": lambda p: p.detach()[:1].add_(1),
    "data": lambda p: p.data.mul_(2),
    "view": lambda p: p.view(-1).add_(1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_a_parameter_are_refused_with_their_line(name: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(9, dtype=torch.float64))

    def writing(x: Tensor) -> Tensor:
        with torch.no_grad():
            WRITES[name](parameter)
        return (x * parameter).sum()

    with pytest.raises(UnsupportedError, match="writes to a tensor from outside") as caught:
        weft.grad(writing)(X)
    assert f"{__file__}:{WRITES[name].__code__.co_firstlineno}" in str(caught.value)
    assert parameter.tolist() == [1] * 9


READERS: dict[str, Callable[[Tensor], float]] = {
    "tolist": lambda y: y.tolist()[1],
    "numpy": lambda y: y.detach().numpy()[1],
    "array": lambda y: np.asarray(y.detach())[1],
    "repr": lambda y: len(repr(y)),
    "str": lambda y: len(str(y)),
    "format": lambda y: len(f"{y}"),
    "data": lambda y: y.data.numpy()[1],
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [torch.clone, torch.nn.Parameter])
def test_python_reads_what_a_function_closes_over(name: str, make: Any) -> None:
    outside = make(Y)
    wanted = READERS[name](outside)
    assert grad(lambda x: x.sum() * READERS[name](outside))(X).tolist() == [wanted] * 9


def test_python_reads_numbers_that_a_function_closes_over() -> None:
    number = torch.tensor(2.5)
    assert grad(lambda x: x.sum() * number.item() if number else x.sum())(X).tolist() == [2.5] * 9
    assert grad(lambda x: x.sum() * float(f"{number:.2f}"))(X).tolist() == [2.5] * 9


def test_python_does_not_read_what_a_function_has_written_to() -> None:
    outside = Y.clone()

    def reading(x: Tensor) -> Tensor:
        outside.add_(1)
        return x.sum() * outside.tolist()[0]

    with pytest.raises(UnsupportedError, match="writes to a tensor from outside") as caught:
        grad(reading)(X)
    assert f"{__file__}:{reading.__code__.co_firstlineno + 1}" in str(caught.value)


def _written(x: Tensor, i: Tensor) -> Tensor:
    copy = x.clone()
    copy[i] = 7 * x[0]
    copy[..., i % 2] = x[..., 0].sin()
    return copy


READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda x, i: x[i],
    "after a slice": lambda x, i: x[1:, i],
    "after an ellipsis": lambda x, i: x[..., i % 2],
    "between": lambda x, i: x[None, 1, ..., i % 2, None],
    "twice": lambda x, i: x[i, i],
    "written": _written,
}


@pytest.mark.parametrize("name", READS)
def test_indices_of_a_batch_are_numbers(name: str) -> None:
    x, places = torch.randn(3, 3, 4, 2, dtype=torch.float64), torch.tensor([0, -1, 2])
    function: Any = READS[name]
    wanted = torch.stack([function(each, place.item()) for each, place in zip(x, places, strict=True)])
    torch.testing.assert_close(weft.vmap(function)(x, places), wanted)


def test_gradients_through_parameters_that_a_function_closes_over() -> None:
    layer = torch.nn.Linear(9, 9, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return layer(x).tanh().sum()

    torch.testing.assert_close(grad(loss)(X), torch.func.grad(loss)(X))
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(grad(loss)(X), torch.func.grad(loss)(X))

    def writing(x: Tensor) -> Tensor:
        return (layer.bias * 2).add_(x.sin()).prod()

    torch.testing.assert_close(grad(writing)(X), torch.func.grad(writing)(X))


@pytest.mark.parametrize("offset", [None, 2])
def test_what_is_written_in_strides_has_all_derivatives(offset: int | None) -> None:
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, y, (2, 2), (1, 5), offset).sin()

    def by_places(x: Tensor, y: Tensor) -> Tensor:
        places = torch.arange(12).as_strided((2, 2), (1, 5), offset or 0)
        return x.reshape(-1).index_put((places,), y).view(3, 4).sin()

    along = (x.cos(), y.sin())
    wanted = torch.func.jvp(by_places, (x, y), along)[1]
    torch.testing.assert_close(jvp(function, (x, y), along)[1], wanted)
    sums: Any = [lambda x, y, f=f: f(x, y).pow(2).sum() for f in (function, by_places)]
    torch.testing.assert_close(grad(sums[0], (0, 1))(x, y), torch.func.grad(sums[1], (0, 1))(x, y))
