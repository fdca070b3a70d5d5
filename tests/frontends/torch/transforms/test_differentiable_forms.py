"""Operators whose derivatives or batches torch lacks, or takes by looking at data: compiled, without a run in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import weft
from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives
from weft.frontends.torch.transforms.differentiable_forms import form_of, taking_tangents

X, Y = torch.randn(4, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
PLACES = torch.tensor([0, 2, 0])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="weft", options={"fallback": "error"})


TWICE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "trace": lambda x, y: (x @ x).trace() * y.sum(),
    "product by places": lambda x, y: x.index_reduce(0, PLACES, y, "prod"),
    "product by an index": lambda x, y: torch.scatter_reduce(x, 0, PLACES[:, None].expand(3, 4), y, "prod"),
    "new product": lambda x, y: x.scatter_reduce(1, PLACES[:2].expand(3, 2), y[:, :2], "prod", include_self=False),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "new product" else name for name in TWICE]
)
@needs_second_derivatives
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_second_derivatives_of(name: str) -> None:
    function = TWICE[name]

    def second(call: Any) -> Any:
        x, y = (each.clone().requires_grad_() for each in (X, Y))
        first = torch.autograd.grad(call(x, y).pow(2).sum(), (x, y), create_graph=True)
        return torch.autograd.grad(sum(each.pow(2).sum() for each in first), (x, y))

    torch.testing.assert_close(second(compiled(function)), second(function))


def test_tangents_of_distances_are_those_of_differences() -> None:
    def distances(x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(x, y, p=3.0).sum() + F.pdist(x).sum()

    along = torch.func.jvp(compiled(distances), (X, Y), (X.cos(), Y.sin()))[1]
    step = 1e-5
    moved = [distances(X + sign * step * X.cos(), Y + sign * step * Y.sin()) for sign in (1, -1)]
    torch.testing.assert_close(along, (moved[0] - moved[1]) / (2 * step), rtol=1e-8, atol=1e-8)


def test_tangents_of_targets_of_a_margin() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.soft_margin_loss(x[:3], y, reduction="sum")

    found = torch.func.jvp(compiled(loss), (X, Y), (X, Y))[1]
    expected = torch.func.jvp(lambda x, y: F.softplus(-y * x[:3]).sum(), (X, Y), (X, Y))[1]
    torch.testing.assert_close(found, expected)


def test_columns_are_stacked_in_a_batch() -> None:
    found = torch.func.vmap(compiled(lambda x, y: torch.column_stack([x, y])), in_dims=(0, None))(X, X)
    torch.testing.assert_close(found, torch.stack([torch.column_stack([row, X]) for row in X]))


def test_duals_of_functions_that_torch_prints_while_it_traces() -> None:
    def tangent(call: Any) -> Tensor:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(X[0].clone().requires_grad_(), Y[0])
            return forward_ad.unpack_dual(call(x)).tangent

    def function(x: Tensor) -> Tensor:
        return torch.quantile(x, 0.3) + torch.einsum("i,i->", x, x)

    torch.testing.assert_close(tangent(compiled(function)), tangent(function))


@pytest.mark.parametrize("offset", [None, 2])
def test_tangents_of_what_is_written_in_strides_are_those_of_differences(offset: int | None) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.as_strided_scatter(x * 1, y.sin(), (2, 2), (1, 5), offset)

    given, along = (X, Y[:2, :2].clone()), (X.cos(), Y[:2, 2:].clone())
    call = torch.compile(function, backend="weft")
    found = torch.func.jvp(call, given, along)[1]
    step = 1e-6
    moved = [function(*(x + sign * step * t for x, t in zip(given, along, strict=True))) for sign in (1, -1)]
    torch.testing.assert_close(found, (moved[0] - moved[1]) / (2 * step), rtol=1e-6, atol=1e-8)
    # Gradients stay what eager's are.
    x = X.clone().requires_grad_()
    mine, theirs = (torch.autograd.grad(each(x, given[1]).sum(), x)[0] for each in (call, function))
    torch.testing.assert_close(mine, theirs)


STRIDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda x, y: (x * 1).as_strided_scatter(y.sin(), (2, 2), (1, 5), 2),
    "columns": lambda x, y: torch.as_strided_scatter((x * 1).t(), y.sin(), (2, 2), (1, 5), 2),
    "within memory": lambda x, y: torch.as_strided_scatter((x * 1)[1:], y.sin(), (2, 2), (1, 5), 4),
}


@pytest.mark.parametrize("name", STRIDED)
def test_tangents_of_what_is_written_into_any_dense_layout(name: str) -> None:
    function = STRIDED[name]
    x, y, dx, dy = X, Y[:2, :2].clone(), X.cos(), Y[:2, 2:].clone()
    step = 1e-6
    moved = [function(x + sign * step * dx, y + sign * step * dy) for sign in (1, -1)]
    expected = (moved[0] - moved[1]) / (2 * step)

    def along(*given: Tensor) -> Tensor:
        return weft.func.jvp(function, given[:2], given[2:])[1]

    def slopes(x: Tensor, y: Tensor) -> Any:
        return weft.func.jacfwd(function, (0, 1))(x, y)

    of_x, of_y = (each[0] for each in weft.vmap(slopes)(x[None], y[None]))
    found = {
        "compiled": torch.func.jvp(torch.compile(function, backend="weft"), (x, y), (dx, dy))[1],
        "jvp": weft.vmap(along)(x[None], y[None], dx[None], dy[None])[0],
        "jacfwd": (of_x * dx).sum((-2, -1)) + (of_y * dy).sum((-2, -1)),
    }
    for each in found.values():
        torch.testing.assert_close(each, expected, rtol=1e-6, atol=1e-8)


def test_tangents_of_what_is_written_beside_a_tensor_are_those_of_eager() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.as_strided_scatter((x * 1)[1:], y.sin(), (2, 2), (1, 5), 2)

    given = X, Y[:2, :2].clone()
    found = torch.func.jvp(torch.compile(function, backend="weft"), given, given)[1]
    torch.testing.assert_close(found, torch.func.jvp(function, given, given)[1])


LENGTHS, BAGS = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 1])
CHUNKED = getattr(torch.nn, "LinearCrossEntropyOptions", None)
SEGMENTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "means of segments": lambda x, y: torch.segment_reduce(x, "mean", lengths=LENGTHS, initial=1) * y[0],
    "products of segments": lambda x, y: torch.segment_reduce(x, "prod", offsets=torch.tensor([0, 1, 4])) * y[0],
    "greatest of segments": lambda x, y: torch.segment_reduce(x, "max", lengths=LENGTHS, initial=-9) * y[0],
    "bags": lambda x, y: F.embedding_bag(
        torch.tensor([0, 2, 3]), x, BAGS, mode="sum", per_sample_weights=y[0, :3], padding_idx=2
    ),
    "means of bags": lambda x, y: F.embedding_bag(torch.tensor([[0, 2], [3, 3]]), x * y[0], padding_idx=2),
}


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.filterwarnings("ignore:.*prototype")
def test_tangents_of_segments_and_bags_are_those_of_differences(name: str) -> None:
    function, along, step = SEGMENTED[name], (X.cos(), Y.sin()), 1e-6
    found = torch.func.jvp(compiled(function), (X, Y), along)[1]
    moved = [function(*(each + sign * step * t for each, t in zip((X, Y), along, strict=True))) for sign in (1, -1)]
    torch.testing.assert_close(found, (moved[0] - moved[1]) / (2 * step), rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(CHUNKED is None, reason="this release of torch has no chunked cross-entropy")
def test_second_derivatives_of_chunked_cross_entropy() -> None:
    labels = torch.tensor([0, 2, 1, 1])

    def loss(options: Any) -> Callable[..., Tensor]:
        return lambda x, y: F.linear_cross_entropy(x, y, labels, options=options, label_smoothing=0.1)

    def second(call: Any) -> Any:
        x, y = (each.clone().requires_grad_() for each in (X, Y))
        first = torch.autograd.grad(call(x, y), (x, y), create_graph=True)
        return torch.autograd.grad(sum(each.pow(2).sum() for each in first), (x, y))

    assert CHUNKED is not None
    chunked = CHUNKED(allow_retain_graph=True, batch_chunk_size=2)
    torch.testing.assert_close(second(compiled(loss(chunked))), second(loss(None)))


def test_tangents_are_taken_in_forward_mode_where_torch_has_them() -> None:
    """By gradients of gradients they would be NaN, or refused."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.logcumsumexp(x, 1).sum(0) + F.hardsigmoid(y).sum(0)

    mine, eager = (torch.func.jvp(each, (X, Y), (X.cos(), Y.sin()))[1] for each in (compiled(function), function))
    torch.testing.assert_close(mine, eager)


def test_tangents_lie_as_their_results_do() -> None:
    """Torch fails at views of a pair that lies in two ways, such as eigenvectors, whose columns come first."""

    def tangent(call: Any) -> Tensor:
        with forward_ad.dual_level():
            _, vectors = call(forward_ad.make_dual(X.clone(), X.cos()))
            return forward_ad.unpack_dual(vectors.mT.abs()).tangent

    quiet = torch.compile(torch.linalg.eig, backend="weft", options={"fallback": "quiet"})
    torch.testing.assert_close(tangent(quiet), tangent(torch.linalg.eig))


def test_tangents_of_gradients_are_those_of_reverse_mode_where_torch_has_two() -> None:
    """Of the gradient of `triangular_solve`, torch's forward mode gives another tangent than differences do."""
    y, along, step = Y.T.contiguous(), X.cos(), 1e-6

    def solved(x: Tensor) -> Tensor:
        return torch.triangular_solve(y, x + 4 * torch.eye(4, dtype=x.dtype)).solution.pow(2).sum()

    found = torch.func.jvp(torch.func.grad(compiled(solved)), (X,), (along,))[1]
    moved = [torch.func.grad(solved)(X + sign * step * along) for sign in (1, -1)]
    torch.testing.assert_close(found, (moved[0] - moved[1]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_many_narrow_elements_are_told_apart_where_they_are_unpooled() -> None:
    x, indices = torch.randn(1, 1, 600).bfloat16(), torch.arange(600).view(1, 1, 600)
    indices[..., 512] = 513  # as bfloat16, 513 is 512
    unpool: Any = F.max_unpool1d
    form = form_of(unpool)
    assert form is not None
    with taking_tangents():
        assert torch.equal(form(x, indices, 2), unpool(x, indices, 2))


def test_tangents_of_gradients_of_cumulative_logarithms() -> None:
    """Torch's gradient takes logarithms of gradients, which have no slope at 0."""

    def tangent(function: Any) -> Any:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(Y.clone().requires_grad_(), Y.cos())
            (found,) = torch.autograd.grad(function(x), x, Y.sin())
            return forward_ad.unpack_dual(found).tangent

    def by_sums(x: Tensor) -> Tensor:
        return x.exp().cumsum(1).log()

    torch.testing.assert_close(tangent(compiled(lambda x: torch.logcumsumexp(x, 1))), tangent(by_sums))
    far = torch.tensor([[-800.0, 0.0, 800.0]], dtype=torch.float64)
    form: Any = form_of(torch.logcumsumexp)
    torch.testing.assert_close(form(far, -1), torch.logcumsumexp(far, -1))
