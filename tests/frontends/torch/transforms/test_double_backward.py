"""Gradients of gradients of compiled functions: what eager gives, to any order, or an error with the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives
from weft.errors import UnsupportedError
from weft.frontends.torch.transforms import double_backward

pytestmark = needs_second_derivatives

Function = Callable[..., Any]


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="weft", options={"fallback": "error"}, **options)


def penalized(function: Any, *inputs: Tensor) -> list[Tensor]:
    """Gradients of the squared gradients: with regard to the inputs of floats, and to parameters."""
    torch.manual_seed(1)
    given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    wanted = [*(x for x in given if x.requires_grad), *parameters]
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((each * each).sum() for each in results if each.requires_grad)
    assert isinstance(total, Tensor)
    first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
    penalty = sum((each * each).sum() for each in first if each is not None)
    assert isinstance(penalty, Tensor)
    second = torch.autograd.grad(penalty, wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(second, wanted, strict=True)]


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        factor = x.sin()
    return x * x * factor + x.detach().cos() * x


class Scaled(torch.autograd.Function):
    """A function whose gradient is not the mathematical one: what is written down counts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return grad * 4 * x**2


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(x)
    y[0] = x[1].sin()
    return y


def several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.exp() * y, x.argmax(), (y**3).sum(), x.detach()


def checkpointed(x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda x: torch.tanh(x) ** 2, x, use_reentrant=False)  # type: ignore


@pytest.mark.parametrize("function", [without_gradients, lambda x: Scaled.apply(x) * x, in_place, checkpointed])  # pyright: ignore
def test_of_functions(function: Function) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(penalized(compiled(function), x), penalized(function, x))


def test_of_several_results_of_which_some_have_no_gradient() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    torch.testing.assert_close(penalized(compiled(several), x, y), penalized(several, x, y))


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm1d])
def test_a_penalty_on_gradients_trains_as_in_eager(norm: Callable[[int], nn.Module]) -> None:
    """Each step writes running statistics anew, which the second derivative has no use for."""

    def trained(wrap: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        middle = (nn.LeakyReLU(), nn.Linear(16, 16), norm(16), nn.SiLU())
        critic = nn.Sequential(nn.Linear(4, 16), *middle, nn.Linear(16, 1))
        optimizer, run = torch.optim.SGD(critic.parameters(), lr=0.05), wrap(critic)
        for _ in range(3):
            x = torch.randn(8, 4, requires_grad=True)
            score = run(x)
            (gradient,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            loss = score.mean() + ((gradient.norm(dim=1) - 1) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach() for parameter in critic.parameters()]

    torch.testing.assert_close(trained(compiled), trained(lambda module: module), rtol=1e-4, atol=1e-5)


def test_to_the_third_order() -> None:
    def third(function: Function, x: Tensor) -> Tensor:
        y = function(x).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.detach()

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(third(compiled(torch.sin), x), -x.detach().cos())


def test_batch_norm_counts_a_batch_once_and_dropout_draws_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.norm(x) ** 3, 0.5)

    eager, net = Net(), Net()
    x = torch.randn(16, 3)
    torch.testing.assert_close(penalized(compiled(net), x)[0], penalized(eager, x)[0], rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(dict(net.named_buffers()), dict(eager.named_buffers()))


def test_attention_has_second_derivatives_although_its_fused_form_in_eager_has_none() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    found = penalized(compiled(F.scaled_dot_product_attention), q, k, v)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = penalized(F.scaled_dot_product_attention, q, k, v)
    torch.testing.assert_close(found, expected)


def test_through_two_compiled_functions_in_a_row() -> None:
    def chained(one: Function, two: Function, x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(two(one(x)).sum(), x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), x)[0]

    def square(x: Tensor) -> Tensor:
        return x.sin() ** 2

    def product(x: Tensor) -> Tensor:
        return x.exp() * x

    x = torch.randn(4, requires_grad=True)
    torch.testing.assert_close(chained(compiled(square), compiled(product), x), chained(square, product, x))


def test_for_sizes_that_are_symbols() -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin() * x.shape[0]

    run = compiled(function, dynamic=True)
    for count in (3, 5):
        x = torch.randn(count, 4, dtype=torch.float64)
        torch.testing.assert_close(penalized(run, x), penalized(function, x))


def test_under_autocasting_as_it_was_in_the_call() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).float().pow(2)

    def mixed(run: Function, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result = run(x, y).sum()
        (first,) = torch.autograd.grad(result, x, create_graph=True)
        return torch.autograd.grad(first.sum(), y)[0]

    x, y = torch.randn(4, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    torch.testing.assert_close(mixed(compiled(function), x, y), mixed(function, x, y), rtol=2e-2, atol=0.1)


def test_what_was_written_to_since_counts_only_if_it_is_read() -> None:
    run = compiled(lambda x, y: (x.sin() + y).sum())
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    result = run(x, y)
    with torch.no_grad():
        y.add_(1)
    (first,) = torch.autograd.grad(result, x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -x.detach().sin())
    result = run(x, y)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result, x, create_graph=True)


def test_a_backward_without_create_graph_frees_the_arguments_that_it_noted() -> None:
    x = torch.randn(3, requires_grad=True)
    result = compiled(lambda x: (x * 2).sin())(x)
    result.sum().backward()
    assert result.grad_fn.weft_kept is None


def written(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sin()


@pytest.mark.parametrize("function", [lambda x: x + 1, torch.relu, torch.tanh, lambda x: x.sum(), written])  # pyright: ignore
def test_a_call_keeps_no_argument_alive_that_its_gradient_does_not_need(function: Function) -> None:
    run, x = compiled(function), torch.randn(8, 8, requires_grad=True)
    run(x * 2).sum().backward()  # compiled
    between = x * 2
    storage = StorageWeakRef(between.untyped_storage())
    result = run(between)
    del between
    assert storage.expired()
    result.sum().backward()


def test_buffers_of_a_model_are_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[Tensor] = []
    made = double_backward.TensorWeakRef

    def reference(value: Tensor) -> Any:
        noticed.append(value)
        return made(value)

    monkeypatch.setattr(double_backward, "TensorWeakRef", reference)
    model = nn.BatchNorm1d(3)
    run = compiled(model)
    for _ in range(3):
        run(torch.randn(5, 3)).sum().backward()
    buffers = list(model.buffers())
    assert sum(any(value is each for each in buffers) for value in noticed) == len(buffers)
    model.running_mean = torch.zeros(3)  # another one, of which the first trace says nothing
    run(torch.randn(5, 3)).sum().backward()
    assert sum(value is model.running_mean for value in noticed) == 1


def test_hooks_for_saved_tensors_see_what_is_saved_and_nothing_else() -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    run, x = compiled(torch.tanh), torch.randn(8, 8, requires_grad=True)
    run(x * 2).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        between = x * 2
        packed.clear()
        run(between)
    assert len(packed) == 1


def test_an_argument_that_was_freed_is_refused_only_if_the_second_derivative_reads_it() -> None:
    x = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(lambda x: (x * 3).sum())(x**3), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], 18 * x.detach())
    run = compiled(torch.tanh)
    run(x**3)  # compiled
    with pytest.raises(UnsupportedError, match="of a compiled function, which was freed after the call"):
        torch.autograd.grad(run(x**3).sum(), x, create_graph=True)
    cube = x**3
    (first,) = torch.autograd.grad(run(cube).sum(), x, create_graph=True)
    expected = torch.autograd.grad(torch.tanh(x**3).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])


def test_views_of_intermediate_results_are_refused_with_the_line() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y.t(), y.view(-1)

    with pytest.raises(UnsupportedError, match="views of what it computed") as raised:
        penalized(compiled(function), torch.randn(3, 4))
    assert (raised.value.location or "").startswith(__file__)


@pytest.mark.parametrize(
    "function",
    [lambda a, b, c: torch.addcmul(a, b, c, value=0.5), lambda a, b, c: a.mT.mT + torch.outer(b[0], c[0])],
)
def test_tangents_of_gradients_where_one_gradient_is_the_seed(function) -> None:
    """Torch drops the tangents of all results of a function of which one lies in the memory of an argument."""

    def tangents(f: Any) -> list[Any]:
        torch.manual_seed(0)
        with forward_ad.dual_level():
            leaves = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
            duals = [forward_ad.make_dual(x, torch.randn_like(x)) for x in leaves]
            found = torch.autograd.grad(f(*duals), duals, torch.randn(3, 3, dtype=torch.float64))
            return [forward_ad.unpack_dual(x).tangent for x in found]

    expected, actual = tangents(function), tangents(torch.compile(function, backend="weft"))
    zeros = torch.zeros(3, 3, dtype=torch.float64)
    for wanted, given in zip(expected, actual, strict=True):
        torch.testing.assert_close(zeros if given is None else given, zeros if wanted is None else wanted)


def test_gradients_of_gradients_that_a_compiled_function_asks_for(caplog: pytest.LogCaptureFixture) -> None:
    """Dynamo compiled the functions that carry them out too, or warned that it could not."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def penalty(x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return second.square().sum()

    found: list[list[Tensor]] = []
    for function in (penalty, torch.compile(penalty, backend="weft")):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        counters.clear()
        value = function(x)
        found.append([value, *torch.autograd.grad(value, [x, *list(model.parameters())[:-1]])])
    torch.testing.assert_close(found[1], found[0])
    assert not [each for each in caplog.records if each.name.startswith("weft")]
    assert counters["frames"]["total"] <= 4  # the function, where it goes on after each gradient, and a second try
