"""Functions of `weft.func` where torch traces or transforms around them: in compiled functions, and in regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.func import checkpoint, custom

STRICT: dict[str, Any] = {"fallback": "error"}


def points(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp()).sum()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda t, x: t.grad(energy)(x),
        lambda t, x: t.vmap(t.grad(energy))(x.expand(3, -1)),
        lambda t, x: t.jvp(energy, (x,), (x,))[1],
        lambda t, x: t.vjp(torch.sin, x)[1](x)[0],
        lambda t, x: t.jacrev(torch.sin)(x),
        lambda t, x: t.hessian(energy)(x),
    ],
)
def test_a_compiled_function_takes_a_transformation_into_its_graph(transformed: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    x = points(4)
    compiled = torch.compile(lambda x: transformed(weft.func, x) * 2, backend="weft", fullgraph=True, options=STRICT)
    torch.testing.assert_close(compiled(x), transformed(torch.func, x) * 2)


def again(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(torch.sin)(x).exp()


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp()


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.hessian])
def test_torch_differentiates_a_checkpoint(transform) -> None:
    x = points(4)
    torch.testing.assert_close(transform(lambda x: again(x).sum())(x), transform(lambda x: plain(x).sum())(x))


@pytest.mark.parametrize("outside", [True, False])
def test_a_checkpoint_in_a_compiled_function_is_differentiated(outside) -> None:
    torch._dynamo.reset()
    x, options = points(4), {"backend": "weft", "fullgraph": True, "options": STRICT}
    if outside:
        found = torch.func.grad(torch.compile(lambda x: again(x).sum(), **options))(x)
    else:
        found = torch.compile(torch.func.grad(lambda x: again(x).sum()), **options)(x)
    torch.testing.assert_close(found, x.cos() * plain(x))


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (again, lambda x: x.cos() * plain(x)),
        (custom(torch.sin, vjp=lambda g, args, results: (2 * g * args[0].cos(),)), lambda x: 2 * x.cos()),
    ],
    ids=["checkpoint", "custom"],
)
def test_functions_of_branches_keep_their_rules(function, gradient) -> None:
    torch._dynamo.reset()

    def branched(x):
        return torch.cond(x.sum() < 1e6, lambda x: function(x), lambda x: x * 1, (x,)).sum()

    x = points(4)
    torch.testing.assert_close(weft.grad(branched)(x), gradient(x))
    compiled = torch.compile(branched, backend="weft", fullgraph=True, options=STRICT)
    torch.testing.assert_close(torch.func.grad(compiled)(x), gradient(x))


@pytest.mark.parametrize("backend", ["weft", "eager"])
def test_functions_that_are_compiled_already_are_transformed(backend: str) -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).prod()

    compiled, x = torch.compile(energy, backend=backend), torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(weft.hessian(compiled)(x), torch.func.hessian(energy)(x))
    torch.testing.assert_close(weft.grad(lambda x: compiled(x).exp())(x), torch.func.grad(lambda x: energy(x).exp())(x))
    net = torch.nn.Linear(4, 2, dtype=torch.float64)
    torch.testing.assert_close(weft.func.jacrev(torch.compile(net, backend=backend))(x), net.weight)


def test_a_compiled_function_may_read_another_global_in_each_call() -> None:
    by, x = 1.0, torch.randn(3)
    scaled = torch.compile(lambda x: (x * by).sum(), backend="weft")
    for by in (1.0, 2.0):
        torch.testing.assert_close(weft.grad(scaled)(x), torch.full_like(x, by))
