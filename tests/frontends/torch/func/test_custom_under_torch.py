"""Rules of custom functions where torch transforms, differentiates or compiles: they hold there as in `weft.func`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import weft
from weft.func import custom

STRICT: dict[str, Any] = {"fallback": "error"}


def points(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def by_backward(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    f(x).sum().backward()
    assert x.grad is not None
    return x.grad


def by_compiled_backward(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return by_backward(torch.compile(lambda z: f(z) * 1, backend="weft"), x)


def by_grad(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda z: f(z).sum())(x)


def by_compiled_grad(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(torch.compile(lambda z: f(z).sum(), backend="weft"))(x)


def by_jvp(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]


def by_compiled_jvp(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(torch.compile(lambda z: f(z) * 1, backend="weft"), (x,), (torch.ones_like(x),))[1]


def by_duals(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        assert tangent is not None
        return tangent


GRADIENTS = by_backward, by_compiled_backward, by_grad, by_compiled_grad
TANGENTS = by_jvp, by_compiled_jvp, by_duals


@pytest.fixture(autouse=True)
def anew() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("way", [by_backward, by_grad])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda g, args, results: (g, g), "gives 2 for 1 arguments"),
        (lambda g, args, results: (g[:2],), r"gives \(\(2,\), torch.float64\) for \(\(3,\), torch.float64\)"),
        (lambda g, args, results: (g.float(),), r"gives \(\(3,\), torch.float32\) for \(\(3,\), torch.float64\)"),
        (lambda g, args, results: (2.0,), "gives <class 'float'>"),
    ],
)
def test_a_gradient_of_another_type_is_refused_with_the_line(way, rule, message) -> None:
    with pytest.raises(weft.ShapeError, match=message) as error:
        way(custom(torch.sin, vjp=rule), points(3))
    assert "test_custom_under_torch.py" in str(error.value)


@pytest.mark.parametrize("way", [by_jvp, by_duals])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda args, tangents: (tangents[0], tangents[0]), "gives 2 for 1 results"),
        (lambda args, tangents: tangents[0][:2], r"gives \(\(2,\), torch.float64\)"),
        (lambda args, tangents: tangents[0].float(), r"gives \(\(3,\), torch.float32\)"),
        (lambda args, tangents: 2.0, "gives <class 'float'>"),
    ],
)
def test_a_tangent_of_another_type_is_refused_with_the_line(way, rule, message) -> None:
    with pytest.raises(weft.ShapeError, match=message) as error:
        way(custom(torch.sin, jvp=rule), points(3))
    assert "test_custom_under_torch.py" in str(error.value)


@pytest.mark.parametrize("way", [by_compiled_backward, by_compiled_grad, by_compiled_jvp])
def test_compiled_functions_refuse_such_rules_with_the_line(way) -> None:
    rules = {"vjp": lambda g, args, results: (g.float(),), "jvp": lambda args, tangents: tangents[0].float()}
    with pytest.raises(weft.ShapeError, match=r"gives \(\(3,\), torch.float32\)") as error:
        way(custom(torch.sin, **rules), points(3))
    assert "test_custom_under_torch.py" in str(error.value)


@pytest.mark.parametrize("vmap", [torch.func.vmap, weft.vmap])
def test_a_batch_of_another_size_is_refused_with_the_line(vmap) -> None:
    f = custom(torch.sin, batch=lambda size, batched, args: args[0][:1].sin())
    with pytest.raises(weft.ShapeError, match="without the batch of 4 in front") as error:
        vmap(f)(points(4, 3))
    assert "test_custom_under_torch.py" in str(error.value)


@pytest.mark.parametrize("way", TANGENTS)
def test_tangents_are_the_transpose_of_a_gradient_rule(way) -> None:
    x = points(5)
    f = custom(torch.sin, vjp=lambda g, args, results: (2 * g * args[0].cos(),))
    torch.testing.assert_close(way(f, x), 2 * x.cos())


@pytest.mark.parametrize("way", TANGENTS)
def test_a_gradient_rule_that_is_not_linear_has_no_tangents(way) -> None:
    f = custom(torch.sin, vjp=lambda g, args, results: (g.clamp(-1, 1),))
    with pytest.raises(weft.UnsupportedError, match="is not linear") as error:
        way(f, points(5))
    assert "test_custom_under_torch.py" in str(error.value) and "`jvp`" in str(error.value)


@pytest.mark.parametrize("way", TANGENTS)
def test_tangents_by_a_rule(way) -> None:
    x = points(5)
    f = custom(torch.sin, jvp=lambda args, tangents: 3 * tangents[0] * args[0].cos())
    torch.testing.assert_close(way(f, x), 3 * x.cos())


def test_tangents_of_a_body_whose_only_rule_is_for_batches() -> None:
    x = points(5)
    f = custom(torch.sin, batch=lambda size, batched, args: args[0].sin())
    torch.testing.assert_close(torch.func.jacfwd(f)(x), torch.diag(x.cos()))


def test_gradients_of_a_body_with_results_of_integers() -> None:
    f = custom(lambda x: (x.argmax(), x.pow(2)), jvp=lambda args, tangents: (None, 2 * args[0] * tangents[0]))
    x = points(4)
    torch.testing.assert_close(torch.func.grad(lambda x: f(x)[1].sum())(x), 2 * x)


def test_second_derivatives_by_rules() -> None:
    f = custom(torch.exp, vjp=lambda g, args, results: (3 * g * results,))
    x = points(4)
    torch.testing.assert_close(torch.func.hessian(lambda x: f(x).sum())(x), 9 * torch.diag(x.exp()))
    g = torch.compile(lambda x: f(x).sum(), backend="weft", fullgraph=True, options=STRICT)
    torch.testing.assert_close(torch.func.hessian(g)(x), 9 * torch.diag(x.exp()))


def test_a_custom_function_is_compiled_with_what_is_around_it() -> None:
    scale = {"by": 2.0}
    weight = points(3).requires_grad_()

    @custom(vjp=lambda g, args, results: (g[0] * scale["by"] * weight, None))
    def f(x, places):
        return x * weight, places + 1

    def whole(x, places):
        value, after = f(x * 2, places)
        return value.sum(), after

    compiled = torch.compile(whole, backend="weft", fullgraph=True, options=STRICT)
    x, places = points(3), torch.arange(3)
    for by in (2.0, 5.0):
        scale["by"] = by
        given = x.clone().requires_grad_()
        value, after = compiled(given, places)
        value.backward()
        torch.testing.assert_close(value, (2 * x * weight).sum())
        torch.testing.assert_close(given.grad, 2 * by * weight)
        torch.testing.assert_close(after, places + 1)
        with torch.no_grad():
            weight.mul_(3)
    assert weight.grad is None


def test_transformed_and_compiled_a_custom_function_stays_compiled(caplog) -> None:
    rules = {"vjp": lambda g, args, results: (5 * g * args[0].cos(),), "jvp": lambda args, t: 7 * t[0] * args[0].cos()}
    f = custom(torch.sin, **rules)
    compiled = torch.compile(lambda x: f(x).sum(), backend="weft", options=STRICT)
    x, xs = points(4), points(3, 4)
    with caplog.at_level(logging.WARNING, "weft"):
        torch.testing.assert_close(torch.func.grad(compiled)(x), 5 * x.cos())
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(compiled))(xs), 5 * xs.cos())
        torch.testing.assert_close(torch.func.jvp(compiled, (x,), (x,))[1], (7 * x * x.cos()).sum())
    assert not caplog.records


def test_a_reversed_gradient_with_options_by_name() -> None:
    f = custom(lambda x, by=1.0: x, vjp=lambda g, args, results, by=1.0: (-by * g,))
    x = points(2, 3)
    for way in GRADIENTS:
        torch.testing.assert_close(way(lambda x: f(x, by=2.0), x), torch.full_like(x, -2))


def test_tensors_given_by_name_have_gradients_by_their_places() -> None:
    f = custom(
        lambda x, by=1.0, weight=None: x * weight * by,
        vjp=lambda g, args, results: (g * args[2] * 5, None, g * args[0] * 7),
    )
    x, weight = points(2, 3), points(3, 2).mT.contiguous()
    for way in GRADIENTS:
        torch.testing.assert_close(way(lambda x: f(x, weight=weight), x), 5 * weight)
        torch.testing.assert_close(way(lambda weight: f(x, weight=weight), weight), 7 * x)
    batch = torch.vmap(lambda x, weight: f(x, weight=weight))(x, weight)
    torch.testing.assert_close(batch, weft.vmap(lambda x, weight: f(x, weight=weight))(x, weight))


@pytest.mark.parametrize("way", [lambda call: call, torch.func.vmap, weft.vmap])
def test_names_that_rules_do_not_take_are_errors_with_a_line(way) -> None:
    x = points(2, 3)
    of_places = custom(lambda x, by=1.0: x * by, vjp=lambda g, args, results: (g,))
    of_names = custom(lambda x, *, weight: x * weight, vjp=lambda g, args, results: (g,))
    for call, words in (
        (lambda x: of_places(x, by=2.0), "vjp rule of <lambda> takes no argument by"),
        (lambda x: of_names(x, weight=x), "takes the tensor weight by name alone"),
    ):
        with pytest.raises(weft.WeftError, match=words) as raised:
            way(call)(x)
        assert "test_custom_under_torch.py:" in (raised.value.location or "")


def test_batches_of_a_compiled_function_take_its_batching_rule() -> None:
    f = custom(torch.sin, batch=lambda size, batched, args: args[0].cos())
    xs = points(4, 3)
    torch.testing.assert_close(torch.func.vmap(torch.compile(f, backend="weft"))(xs), xs.cos())
    torch.testing.assert_close(torch.compile(f, backend="weft", fullgraph=True)(xs), xs.sin())
