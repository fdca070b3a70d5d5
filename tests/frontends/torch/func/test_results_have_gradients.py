"""Results of `weft.func` are differentiable by torch's autograd, as those of `torch.func` are, against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
import weft.func


def network() -> torch.nn.Module:
    net = torch.nn.Sequential(torch.nn.Linear(2, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    return net.to(torch.float64)


def gradients(loss: Tensor, tensors: Any) -> tuple[Any, ...]:
    return torch.autograd.grad(loss, list(tensors), allow_unused=True, materialize_grads=True)


def f(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).pow(2).sum()


WAYS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "grad": lambda of, x, w: of.grad(f, (0, 1))(x, w),
    "has_aux": lambda of, x, w: of.grad(lambda x, w: (f(x, w), x @ w), has_aux=True)(x, w),
    "jvp": lambda of, x, w: of.jvp(f, (x, w), (x.cos(), w * 2)),
    "vjp": lambda of, x, w: of.vjp(lambda x, w: torch.sin(x @ w), x, w)[1](torch.ones(5, 3, dtype=x.dtype)),
    "vjp's value": lambda of, x, w: of.vjp(lambda x, w: torch.sin(x @ w), x, w)[0],
    "vjp of seeds": lambda of, x, w: of.vjp(lambda x: torch.sin(x @ w.detach()), x)[1](x @ w),
    "vmap of vjp": lambda of, x, w: of.vmap(of.vjp(lambda x: torch.sin(x) @ w, x)[1])(torch.ones(2, 5, 3).double()),
    "linearize": lambda of, x, w: of.linearize(lambda x, w: torch.sin(x @ w), x, w)[1](x.cos(), w),
    "vmap": lambda of, x, w: of.vmap(of.grad(f), (0, None))(x, w),
    "jacrev": lambda of, x, w: of.jacrev(lambda x: torch.sin(x @ w))(x),
    "jacrev in chunks": lambda of, x, w: of.jacrev(lambda x: torch.sin(x @ w), chunk_size=2)(x),
    "jacfwd": lambda of, x, w: of.jacfwd(lambda x, w: torch.sin(x @ w), 1)(x, w),
    "hessian": lambda of, x, w: of.hessian(f)(x, w),
    "closed over": lambda of, x, w: of.grad(lambda x: f(x, w * 2))(x),
    "complex": lambda of, x, w: of.grad(lambda z: (z * z).abs().sum())(torch.complex(x, x.sin())),
    "integers beside": lambda of, x, w: of.grad(lambda x: (f(x, w), x.argmax()), has_aux=True)(x)[0],
}


def total(found: Any) -> Tensor:
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, Tensor)]
    return sum((leaf.abs() if leaf.is_complex() else leaf.cos()).sum() for leaf in leaves)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("name", WAYS)
def test_results_have_the_gradients_that_torchs_have(name: str) -> None:
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    if name == "linearize":
        expected = gradients(total(torch.func.jvp(lambda x, w: torch.sin(x @ w), (x, w), (x.cos(), w))[1]), (x, w))
    else:
        expected = gradients(total(WAYS[name](torch.func, x, w)), (x, w))
    torch.testing.assert_close(gradients(total(WAYS[name](weft.func, x, w)), (x, w)), expected)


def test_the_loss_of_a_physics_informed_network_has_its_whole_gradient() -> None:
    net = network()

    def residual(of: Any, points: Tensor) -> Tensor:
        def u(x: Tensor) -> Tensor:
            return net(x).squeeze()

        laplacian = of.vmap(lambda x: of.hessian(u)(x).diagonal().sum())(points)
        return (laplacian - torch.sin(points).sum(-1)).pow(2).mean() + of.vmap(of.grad(u))(points).pow(2).mean()

    points = torch.randn(6, 2, dtype=torch.float64)
    mine, eager = (gradients(residual(of, points), net.parameters()) for of in (weft.func, torch.func))
    torch.testing.assert_close(mine, eager)
    assert all(each.any() for each in mine[:3])


def test_parameters_of_a_module_that_is_transformed_have_gradients() -> None:
    net, x = network(), torch.randn(3, 2, dtype=torch.float64)
    expected = gradients(torch.func.vmap(net)(x).sum(), net.parameters())
    torch.testing.assert_close(gradients(weft.func.vmap(net)(x).sum(), net.parameters()), expected)


def test_gradients_of_results_have_gradients() -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    first = weft.func.grad(lambda x: x.pow(4).sum())(x)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    torch.testing.assert_close((first, second, third), (4 * x**3, 12 * x**2, 24 * x))


def test_a_gradient_is_of_the_random_numbers_of_its_call() -> None:
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    value, gradient = weft.func.value_and_grad(lambda x: (torch.dropout(x, 0.5, True) * x).sum())(x)
    (of_value,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(of_value, gradient.detach())


def test_nothing_is_recorded_where_torch_records_nothing() -> None:
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not weft.func.grad(lambda x: x.pow(3).sum())(x).requires_grad
    assert not weft.func.grad(lambda x: x.pow(3).sum())(x.detach()).requires_grad
    assert not weft.func.vmap(lambda x: x.argmax())(x.expand(2, 3)).requires_grad
