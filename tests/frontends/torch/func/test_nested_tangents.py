"""Tangents inside of functions that are traced, where they are gradients of gradients, against those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.func as reference
from torch._higher_order_ops.scan import scan
from torch.autograd.function import once_differentiable
from torch.fx.experimental.proxy_tensor import make_fx

import weft

X = torch.linspace(0.5, 2, 4)


class Cube(torch.autograd.Function):
    """Its gradient has no gradient, but it has a tangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * g

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * t


class DetachedCube(Cube):
    """Its gradient looks like a number that nothing led to."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 3 * ctx.saved_tensors[0].detach() ** 2 * g.detach()


@pytest.mark.parametrize("kind", [Cube, DetachedCube])
@pytest.mark.parametrize("beside", [False, True])
def test_gradients_that_have_no_gradients_leave_tangents_to_their_rule(kind: Any, beside: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return kind.apply(x) + x.sin() if beside else kind.apply(x)

    def slopes(t: Any, x: torch.Tensor) -> torch.Tensor:
        return t.jacfwd(function)(x).sum() + t.jvp(function, (x,), (x,))[1].prod()

    rows = torch.stack([X, X + 1])
    found = weft.vmap(lambda x: slopes(weft.func, x))(rows)
    torch.testing.assert_close(found, reference.vmap(lambda x: slopes(reference, x))(rows))


def test_gradients_that_have_no_gradients_and_no_other_rule_are_refused() -> None:
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    with pytest.raises(weft.UnsupportedError, match="not differentiable") as error:
        weft.vmap(lambda x: weft.func.jacfwd(lambda z: Opaque.apply(z))(x).sum())(torch.stack([X, X]))
    assert "test_nested_tangents.py" in str(error.value)


def test_rules_under_no_grad_have_derivatives() -> None:
    class Power(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3 * ctx.saved_tensors[0] ** 2

    torch.testing.assert_close(weft.func.jacrev(weft.grad(lambda x: Power.apply(x).sum()))(X), (6 * X).diag())
    torch.testing.assert_close(weft.jvp(lambda x: Power.apply(x), (X,), (X,))[1], 3 * X**3)


def test_integers_beside_floats_have_tangents_as_in_torch() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.argmax()

    def slope(t: Any, x: torch.Tensor) -> torch.Tensor:
        return t.jacfwd(function)(x)[0].sum() + t.jvp(function, (x,), (x,))[1][0].sum()

    found = weft.grad(lambda x: slope(weft.func, x))(X)
    torch.testing.assert_close(found, reference.grad(lambda x: slope(reference, x))(X))


@pytest.mark.parametrize("make", ["grad", "vmap", "jacfwd"])
def test_tracing_with_symbolic_sizes(make: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    rows = torch.stack([X, X]) if make == "vmap" else X
    graph = make_fx(getattr(weft.func, make)(function), tracing_mode="symbolic")(rows)
    torch.testing.assert_close(graph(rows), getattr(reference, make)(function)(rows))


def test_linear_maps_inside_of_other_transformations() -> None:
    """Torch's own are computed at once in part, and forget how they depend on the point."""

    def function(x: torch.Tensor) -> torch.Tensor:
        value, push = weft.func.linearize(torch.sin, x)
        return (value * push(x)).sum()

    torch.testing.assert_close(weft.grad(function)(X), reference.grad(lambda x: (x.sin() * x.cos() * x).sum())(X))


def _scanned(x: torch.Tensor) -> torch.Tensor:
    def turn(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = torch.sin(state * row) + state
        return after, after * row

    last, rows = scan(turn, x[0].clone(), x)
    return (rows * rows).sum() + last


def _branched(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() * x, lambda x: x.exp(), (x,)).sum()


@pytest.mark.parametrize(("function", "order"), [(_scanned, 2), (_branched, 0)])
def test_linear_maps_of_control_flow(function: Any, order: int) -> None:
    """Its values are known before any tangent is, though one op could compute both."""
    made = weft.hessian(function) if order else function
    value, push = weft.func.linearize(made, X)
    for step in (X, X.flip(0)):
        torch.testing.assert_close((value, push(step)), weft.jvp(made, (X,), (step,)))
