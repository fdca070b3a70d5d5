"""Functions of `torch.func`, and duals, over compiled functions: compiled, and what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from weft.frontends.torch.backend import record_targets

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="weft", options={"fallback": "error"}, **options)


def energy(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).pow(2).sum()


X, W, BATCH = torch.randn(3, 4), torch.randn(4, 5), torch.randn(6, 3, 4)


def rows(function: Function) -> Function:
    return lambda x: vmap(function, (0, None))(x, W)


def dual(function: Function) -> tuple[Any, ...]:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(function(forward_ad.make_dual(X, torch.ones_like(X)), W)))


TRANSFORMED: dict[str, Callable[[Function], Any]] = {
    "grad": lambda f: grad(f, argnums=(0, 1))(X, W),
    "vjp": lambda f: vjp(f, X, W)[1](torch.tensor(2.0)),
    "jvp": lambda f: jvp(f, (X, W), (X, W)),
    "vmap": lambda f: rows(f)(BATCH),
    "vmap of grad": lambda f: vmap(grad(f), (0, None))(BATCH, W),
    "vmap of vmap": lambda f: vmap(vmap(f, (0, None)), (None, 0))(BATCH, torch.stack([W, 2 * W])),
    "jacrev": lambda f: jacrev(rows(f))(BATCH),
    "jacfwd": lambda f: jacfwd(rows(f))(BATCH),
    "hessian": lambda f: hessian(f)(X, W),
    "grad of grad": lambda f: grad(lambda x: grad(f)(x, W).sum())(X),
    "jvp of grad": lambda f: jvp(lambda x: grad(f)(x, W), (X,), (X,)),
    "dual": dual,
    "grad of a view": lambda f: grad(lambda x: f(x[0], W))(BATCH),
    "grad through a result": lambda f: grad(lambda x: f(x * 2, W))(X),
    "vmap through a slice": lambda f: vmap(lambda x: f((x * 2)[1:], W))(BATCH),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_functions_stay_compiled(name: str) -> None:
    transformed = TRANSFORMED[name]
    with record_targets() as record:
        found = transformed(compiled(energy))
    assert "aten.tanh.default" in record.seen and not record.opaque
    torch.testing.assert_close(found, transformed(energy))


def test_backward_of_what_was_batched() -> None:
    def gradient(function: Function) -> Tensor:
        w = W.clone().requires_grad_()
        return torch.autograd.grad(vmap(function, (0, None))(BATCH, w).sum(), w)[0]

    torch.testing.assert_close(gradient(compiled(energy)), gradient(energy))


def test_gradients_of_each_sample_of_a_module() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def gradients(module: Any, prefix: str) -> list[Tensor]:
        def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(module, given, (x,)).pow(2).sum()

        given = {prefix + name: parameter for name, parameter in parameters.items()}
        return list(vmap(grad(loss), (None, 0))(given, torch.ones(6, 4)).values())

    torch.testing.assert_close(gradients(compiled(net), "_orig_mod."), gradients(net, ""))


def test_tangents_for_which_torch_has_no_rule() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    found = jvp(compiled(F.scaled_dot_product_attention), (q, k, v), (k, v, q))[1]
    step = 1e-6
    above, below = (F.scaled_dot_product_attention(q + s * k, k + s * v, v + s * q) for s in (step, -step))
    torch.testing.assert_close(found, (above - below) / (2 * step), rtol=1e-6, atol=1e-7)


def test_a_gradient_sees_the_numbers_that_the_result_was_made_with() -> None:
    x = torch.ones(200)
    run = compiled(lambda x: F.dropout(x, 0.5) * x)
    y, pull = vjp(run, x)
    torch.testing.assert_close(pull(torch.ones(200))[0], 2 * y)
    assert not torch.equal(vjp(run, x)[0], y)


def test_every_sample_has_numbers_of_its_own_if_asked() -> None:
    run = compiled(lambda x: F.dropout(x, 0.5))
    different = vmap(run, randomness="different")(torch.ones(2, 100))
    same = vmap(run, randomness="same")(torch.ones(2, 100))
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[1])


def test_what_writes_to_a_tensor_from_outside_of_a_gradient_is_refused_as_in_eager() -> None:
    for wrap in (compiled, lambda net: net):
        run = wrap(nn.BatchNorm1d(3))
        with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
            vjp(lambda x, run=run: run(x).sum(), torch.arange(12.0).reshape(4, 3))


def test_what_writes_to_a_transformed_argument_is_seen_outside() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x.mul_(2).sin()

    def used(run: Function) -> Function:
        def function(x: Tensor) -> Tensor:
            y = x + 1
            return run(y).sum() + (y * y).sum()

        return function

    torch.testing.assert_close(grad(used(compiled(doubled)))(X), grad(used(doubled))(X))


def test_results_that_are_numbers_come_back_as_they_are() -> None:
    def function(x: Tensor) -> tuple[Tensor, int, None]:
        return x.sin(), x.shape[0], None

    def first(run: Function) -> Function:
        return lambda x: run(x)[0].sum()

    torch.testing.assert_close(grad(first(compiled(function)))(X), X.cos())


def test_what_torch_cannot_transform_is_told_with_the_line(caplog: pytest.LogCaptureFixture) -> None:
    def ordered(x: Tensor) -> Tensor:
        return torch.ops.weft.untransformed(x) * x

    library = torch.library.Library("weft", "FRAGMENT")
    library.define("untransformed(Tensor x) -> Tensor")
    library.impl("untransformed", lambda x: x.sin(), "CompositeExplicitAutograd")
    torch.library.register_fake("weft::untransformed", torch.empty_like, lib=library)
    run = torch.compile(ordered, backend="weft")
    found = vmap(run)(X)
    torch.testing.assert_close(found, X.sin() * X)
    with pytest.raises(Exception, match="untransformed"):
        grad(lambda x: compiled(ordered)(x).sum())(X)


def test_tangents_of_gradients_of_a_transposed_convolution_with_output_padding() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv_transpose3d(x, w, stride=2, padding=2, output_padding=1)

    x, w = torch.randn(1, 3, 4, 4, 4, dtype=torch.float64), torch.randn(3, 3, 3, 3, 3, dtype=torch.float64)

    def tangents(function: Function) -> list[Any]:
        with forward_ad.dual_level():
            given = [forward_ad.make_dual(each.requires_grad_(), torch.ones_like(each)) for each in (x, w)]
            result = function(*given)
            found = torch.autograd.grad(result, given, torch.ones_like(result))
            return [forward_ad.unpack_dual(each).tangent.detach() for each in found]

    torch.testing.assert_close(tangents(compiled(function)), tangents(function))
