"""Training and random numbers: gradients, dropout, optimizers, mixed precision, statistics, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives
from weft.runtime.record import CompilationRecord

T = torch.Tensor


def gradients(function: Callable[..., T], *arguments: T) -> tuple[T, ...]:
    """The value of a function that gives a number, and its gradients."""
    leaves = [argument.detach().clone().requires_grad_(argument.is_floating_point()) for argument in arguments]
    value = function(*leaves)
    return value.detach(), *torch.autograd.grad(value, [leaf for leaf in leaves if leaf.requires_grad])


def check_gradients(function: Callable[..., T], *arguments: T, seed: int = 0) -> None:
    results: list[tuple[T, ...]] = []
    for run in (function, torch.compile(function, backend="weft")):
        torch.manual_seed(seed)
        results.append(gradients(run, *arguments))
    torch.testing.assert_close(results[1], results[0])


RANDOM: dict[str, Callable[[T], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "rand": lambda x: (torch.rand(5), torch.rand_like(x) * x, torch.randn(3, 2)),
    "bernoulli": lambda x: (torch.bernoulli(x.sigmoid()), torch.rand(3).lt(0.5)),
    "randint": lambda x: (torch.randint(0, 9, (7,)), torch.randperm(6), x.normal_().clone()),
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.2) + 1, 0.5),
    "transposed": lambda x: (F.dropout(x.t(), 0.4), torch.rand_like(x.t()), x[:, ::2].sigmoid().bernoulli()),
    "in place": lambda x: (x.t().uniform_(), x[1:].exponential_(), x.normal_().clone()),
    "multinomial": lambda x: torch.multinomial(torch.softmax(x, -1), 2),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_random_numbers_are_eagers(kind: str) -> None:
    x = torch.randn(4, 6)
    states: list[tuple[Any, T]] = []
    for run in (RANDOM[kind], torch.compile(RANDOM[kind], backend="weft")):
        torch.manual_seed(3)
        states.append((run(x.clone()), torch.rand(2)))  # what is drawn next shows how far the generator went
    torch.testing.assert_close(states[1], states[0])


def test_every_call_draws_anew() -> None:
    run = torch.compile(lambda x: F.dropout(x, 0.5), backend="weft")
    x = torch.ones(64)
    assert not torch.equal(run(x), run(x))


def test_dropout_is_not_drawn_again_in_backward() -> None:
    def function(x: T) -> T:
        return (F.dropout(torch.tanh(F.dropout(x, 0.3)), 0.5) * x).sum()

    check_gradients(function, torch.randn(40, 30))
    x = torch.ones(1000, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.5), backend="weft")(x)
    torch.rand(100)  # the generator goes on between forward and backward
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


def test_a_transformer_layer_with_dropout_trains_as_in_eager() -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True).double()
    run = torch.compile(layer, backend="weft")
    x = torch.randn(3, 5, 16).double()
    results: list[Any] = []
    for function in (layer, run):
        torch.manual_seed(7)
        results.append(torch.autograd.grad(function(x).square().sum(), list(layer.parameters())))
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_arguments_and_of_views() -> None:
    check_gradients(lambda x, y: (x.t() @ y).relu().sum() + x[1:].square().mean(), torch.randn(4, 3), torch.randn(4, 5))
    check_gradients(lambda x: x.expand(3, 4).cumsum(1).prod(0).sum(), torch.rand(4))
    check_gradients(lambda x, i: x[i].sum() + x.gather(0, i[:, None]).sum(), torch.randn(5, 3), torch.tensor([0, 2, 2]))


def test_gradients_accumulate() -> None:
    model, x = nn.Linear(5, 3), torch.randn(8, 5)
    twin = copy.deepcopy(model)
    run = torch.compile(model, backend="weft")
    for part in x.chunk(4):
        twin(part).square().sum().backward()
        run(part).square().sum().backward()
    torch.testing.assert_close(model.weight.grad, twin.weight.grad)


def test_retained_graphs_and_partial_gradients() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    run = torch.compile(lambda w: (w.exp().sum(), w.sin().sum()), backend="weft")
    first, second = run(w)
    (a,) = torch.autograd.grad(first, w, retain_graph=True)
    (b,) = torch.autograd.grad(second, w, retain_graph=True)
    (c,) = torch.autograd.grad(first + second, w)
    torch.testing.assert_close((a, b, c), (w.exp(), w.cos(), w.exp() + w.cos()))


@needs_second_derivatives
def test_gradients_of_gradients_are_those_of_eager() -> None:
    x = torch.randn(3, requires_grad=True)
    y = torch.compile(lambda x: x.sin().sum(), backend="weft")(x)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, -x.detach().sin())


def test_optimizer_steps_around_and_inside() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[T]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def step(x: T, y: T) -> T:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = wrap(step)
        data = torch.randn(16, 6)
        losses = [run(data, data.sum(1, keepdim=True)).detach() for _ in range(5)]
        return [*losses, *(p.detach() for p in model.parameters())]

    expected = trained(lambda step: step)
    torch.testing.assert_close(trained(lambda step: torch.compile(step, backend="weft")), expected)


def test_a_compiled_optimizer_step(records: list[CompilationRecord]) -> None:
    def stepped(wrap: Callable[[Any], Any]) -> list[T]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        step = wrap(optimizer.step)
        for _ in range(3):
            for p in parameters:
                p.grad = torch.ones_like(p) * p.detach().sum()
            step()
        return [p.detach() for p in parameters]

    expected = stepped(lambda step: step)
    torch.testing.assert_close(stepped(lambda step: torch.compile(step, backend="weft")), expected)
    assert records


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_keeps_its_statistics(training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(training)
    twin = copy.deepcopy(model)
    run = torch.compile(model, backend="weft")
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(run(x), twin(x), check_stride=True)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    model.eval(), twin.eval()
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(run(x), twin(x))


def test_autocast_to_bfloat16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 8))
    run = torch.compile(model, backend="weft")
    x = torch.randn(16, 32)

    def step(function: Callable[[T], T]) -> list[T]:
        y = function(x)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), list(model.parameters()))]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        eager, actual = step(model), step(run)
    twin = copy.deepcopy(model).double()
    value = twin(x.double())
    exact = [value.detach(), *torch.autograd.grad(value.square().sum(), list(twin.parameters()))]
    for ours, theirs, wanted in zip(actual, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - wanted).norm() <= 2 * (theirs - wanted).norm()

    def inside(x: T) -> tuple[T, T]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.t()
        return y, y.float() + x.sum()

    results = torch.compile(inside, backend="weft")(x)
    assert [r.dtype for r in results] == [torch.bfloat16, torch.float32]


def test_modes_of_autograd() -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    run = torch.compile(model, backend="weft")
    with torch.no_grad():
        assert not run(x).requires_grad
    with torch.inference_mode():
        y = run(x)
        assert y.is_inference() and torch.allclose(y, model(x))
        assert torch.allclose(run(torch.ones(2, 4)), model(torch.ones(2, 4)))
    y = run(x)
    assert y.requires_grad
    y.sum().backward()
    assert model.weight.grad is not None
    frozen = nn.Linear(4, 3).requires_grad_(False)
    assert not torch.compile(frozen, backend="weft")(x).requires_grad

    def detached(x: T) -> tuple[T, T]:
        with torch.no_grad():
            y = x * 2
        return y, y + x

    x = x.requires_grad_()
    first, second = torch.compile(detached, backend="weft")(x)
    assert not first.requires_grad and second.requires_grad


def test_in_place_on_what_requires_gradients() -> None:
    def function(x: T) -> T:
        y = x * 2
        y.add_(1)
        y[:, 0].mul_(3)
        return y.square().sum()

    check_gradients(function, torch.randn(3, 4))


def test_custom_autograd_function() -> None:
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:
            (x,) = ctx.saved_tensors
            return (grad * x.exp()).clamp(-1, 1)

    check_gradients(lambda x: (Clipped.apply(x) * x).sum(), torch.randn(6))


def test_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    def block(x: T, w: T) -> T:
        return F.dropout(torch.tanh(x @ w), 0.3)

    def function(x: T, w: T) -> T:
        return checkpoint(block, checkpoint(block, x, w, use_reentrant=False), w, use_reentrant=False).sum()

    check_gradients(function, torch.randn(5, 4).double(), torch.randn(4, 4).double())


def test_hooks_run() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    seen: list[str] = []
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_full_backward_hook(lambda module, given, taken: seen.append("backward"))
    x = torch.randn(3, 4)
    run = torch.compile(model, backend="weft")
    torch.testing.assert_close(run(x), model(x))
    seen.clear()
    run(x).sum().backward()
    assert seen == ["backward"]
    leaf = torch.randn(3, 4, requires_grad=True)
    leaf.register_hook(lambda grad: grad * 0)
    run(leaf).sum().backward()
    assert leaf.grad is not None and not leaf.grad.any()


def test_functional_transforms() -> None:
    def loss(w: T, x: T) -> T:
        return torch.tanh(x @ w).square().sum()

    w, x = torch.randn(4), torch.randn(6, 4)
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    torch.testing.assert_close(torch.compile(per_sample, backend="weft")(w, x), per_sample(w, x))


def test_the_gradient_of_a_loss_that_picks_is_no_scatter_of_its_own(records: list[CompilationRecord]) -> None:
    labels = torch.randint(50, (20,))
    check_gradients(lambda x: F.cross_entropy(x, labels), torch.randn(20, 50))
    kernels = [kernel.label for record in records for kernel in record.kernels]
    assert kernels and not any(label.startswith("scatter") for label in kernels)
