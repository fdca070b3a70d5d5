"""Functions of autograd's in what `torch.func` transforms and Weft compiles: their rules are those that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import weft
from weft.diagnostics import forget

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


class Steeper(torch.autograd.Function):
    """A cube whose rules are not its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * 4 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangent * 4 * ctx.saved_tensors[0] ** 2


class Scaled(torch.autograd.Function):
    """Takes what is no tensor, and has a rule for batches."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, factor: float, mode: str) -> torch.Tensor:
        return x * y * factor if mode == "scaled" else x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[2]
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y = ctx.saved_tensors
        return grad * y * ctx.factor * 2, grad * x * ctx.factor * 5, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, y: Any, factor: float, mode: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y = (z if d is None else z.movedim(d, 0) for z, d in zip((x, y), in_dims[:2], strict=True))
        return Scaled.apply(x, y, factor, mode), 0


class Turned(torch.autograd.Function):
    """Twice a complex number, with rules that are not its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: torch.Tensor) -> torch.Tensor:
        return z * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.needs = ctx.needs_input_grad[0]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * 7 * ctx.saved_tensors[0] if ctx.needs else None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangent * 7 * ctx.saved_tensors[0].conj()


def turned(x: torch.Tensor) -> torch.Tensor:
    z: Any = Turned.apply(torch.complex(x, x.sin()))
    return (z.real * z.imag + z.abs()).sum()


class Either(torch.autograd.Function):
    """Two results, with rules that tell one without a gradient, or an argument without a tangent."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * y, x - y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, a: Any, b: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = a * 10 if b is None else a * 100 + b
        return found, found

    @staticmethod
    def jvp(ctx: Any, x: Any, y: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (x * 10, x) if y is None else (x * 100, y)


class Unmaterialized(Steeper):
    """One whose gradient is always there."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        Steeper.setup_context(ctx, inputs, output)


class Picked(Steeper):
    """One that cannot be run on tensors that have no numbers."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x ** {torch.Tensor: 3, torch.nn.Parameter: 3}[type(x)]


class Listed(torch.autograd.Function):
    """Takes numbers by name, and what may be a list of tensors."""

    @staticmethod
    def forward(x: torch.Tensor, by: Any, plus: float = 1.0) -> torch.Tensor:
        return x.round() * (by[0] if isinstance(by, list) else by) + plus

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.plus = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * 77 * ctx.plus, None, None


def steeper(x: torch.Tensor) -> torch.Tensor:
    return Steeper.apply(x).sum()  # pyright: ignore[reportReturnType, reportOptionalMemberAccess, reportAttributeAccessIssue]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (Scaled.apply(x, x.sin(), 3.0, "scaled") ** 2).sum()  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]


def along(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: torch.func.jvp(function, (x,), (x.cos(),))


TRANSFORMS: dict[str, Transform] = {
    "grad": torch.func.grad,
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f), in_dims=0),
    "jvp": along,
    "hessian": lambda f: torch.func.vmap(torch.func.hessian(f)),
    "jvp of grad": lambda f: along(torch.func.grad(f)),
    "grad of jvp": lambda f: torch.func.grad(lambda x: along(f)(x)[1]),
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum()),
}


@pytest.fixture(autouse=True)
def anew() -> None:
    torch._dynamo.reset()
    counters.clear()


def agrees_where_compiled(transformed: Any) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    found = torch.compile(transformed, backend="weft", fullgraph=True)(x)
    torch.testing.assert_close(found, transformed(x))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_rules_count_where_the_transformation_is_compiled(name: str) -> None:
    agrees_where_compiled(TRANSFORMS[name](steeper))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_rules_count_where_the_function_is_compiled(name: str) -> None:
    x, transform = torch.randn(3, 4, dtype=torch.float64), TRANSFORMS[name]
    found = transform(torch.compile(steeper, backend="weft", fullgraph=True))(x)
    torch.testing.assert_close(found, transform(steeper)(x))


@pytest.mark.parametrize("name", [name for name in TRANSFORMS if name != "hessian"])
def test_rules_count_for_complex_numbers(name: str) -> None:
    """Dynamo itself does not trace products of complex numbers in a Hessian."""
    agrees_where_compiled(TRANSFORMS[name](turned))


def test_complex_gradients_are_those_of_eager_in_backward() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    torch.compile(turned, backend="weft", fullgraph=True)(x).backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(turned(x), x)[0])


@pytest.mark.parametrize("name", ["grad", "vmap of grad", "grad of grad"])
def test_arguments_that_are_no_tensors_reach_the_rules(name: str) -> None:
    agrees_where_compiled(TRANSFORMS[name](scaled))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_rules_of_custom_functions_count_too(name: str) -> None:
    custom = weft.func.custom(lambda x: x**3, vjp=lambda grads, args, results: (grads * 4 * args[0] ** 2,))
    x = torch.randn(3, 4, dtype=torch.float64)
    found = torch.compile(TRANSFORMS[name](lambda x: custom(x).sum()), backend="weft", fullgraph=True)(x)
    torch.testing.assert_close(found, TRANSFORMS[name](steeper)(x))


def test_tangents_of_values_that_are_not_finite() -> None:
    x, transformed = torch.tensor([1.0, float("inf"), -2.0]), along(Steeper.apply)
    torch.testing.assert_close(torch.compile(transformed, backend="weft")(x), transformed(x), equal_nan=True)


def test_a_function_with_a_rule_for_tangents_does_not_break_the_graph() -> None:
    x = torch.randn(5, requires_grad=True)
    torch.compile(steeper, backend="weft", fullgraph=True)(x).backward()
    torch.testing.assert_close(x.grad, 4 * x.detach() ** 2)
    assert not counters["graph_break"]


def test_rules_that_tell_none_from_zeros_are_those_of_eager() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        found: Any = Either.apply(x, x)
        return found[0].sum()

    x = torch.randn(5, requires_grad=True)
    torch.compile(first, backend="weft")(x).backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 20.0))


def test_rules_that_could_tell_none_but_are_never_given_it() -> None:
    def transformed(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: Unmaterialized.apply(x).sum())(x)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]

    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(transformed, backend="weft", fullgraph=True)(x), 4 * x**2)


def test_a_function_that_raises_for_tensors_without_numbers_is_left_to_torch() -> None:
    def cube(x: torch.Tensor) -> torch.Tensor:
        return Picked.apply(x).sum()  # pyright: ignore[reportReturnType, reportOptionalMemberAccess, reportAttributeAccessIssue]

    x = torch.randn(5, requires_grad=True)
    torch.compile(cube, backend="weft")(x).backward()
    torch.testing.assert_close(x.grad, 4 * x.detach() ** 2)


@pytest.mark.parametrize("given", [{"by": 2.0}, {"plus": 3.0, "by": 2.0}])
def test_arguments_by_name_reach_the_rules(given: Any) -> None:
    x, transformed = torch.randn(5), torch.func.grad(lambda x: Listed.apply(x, **given).sum())  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    found = torch.compile(transformed, backend="weft", fullgraph=True)(x)
    torch.testing.assert_close(found, torch.full((5,), 77 * given.get("plus", 1.0)))


def test_sizes_reach_the_rules() -> None:
    transformed = torch.func.grad(lambda x: Listed.apply(x, x.shape[0], 1.0).sum())  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    found = torch.compile(transformed, backend="weft", fullgraph=True, dynamic=True)(torch.randn(5))
    torch.testing.assert_close(found, torch.full((5,), 77.0))


def listed(x: torch.Tensor) -> Any:
    return torch.func.grad(lambda x: Listed.apply(x, [x.detach()], 1.0).sum())(x)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def test_rules_that_are_not_taken_are_told(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    torch.compile(listed, backend="weft")(torch.randn(5))
    told = [each.getMessage() for each in caplog.records if each.name == "weft.fallback"]
    assert len(told) == 1
    assert "derivatives of Listed are those of its forward" in told[0]
    assert __file__ in told[0]


def test_rules_that_are_not_taken_are_an_error_where_nothing_may_fall_back() -> None:
    with pytest.raises(Exception, match="derivatives of Listed are those of its forward"):
        torch.compile(listed, backend="weft", options={"fallback": "error"})(torch.randn(5))
