"""A function of `weft.func` that writes to its arguments is refused with the line, and leaves them as they are."""

from __future__ import annotations

import pytest
import torch

import weft


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).sum()


def first_set(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1
    return x.sum()


def part_added(x: torch.Tensor) -> torch.Tensor:
    rows = x.view(2, -1)
    rows[1].add_(1)
    return x.sum()


def written_out(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x, out=x).sum()


@pytest.mark.parametrize("transform", [weft.grad, weft.vmap, weft.hessian])
@pytest.mark.parametrize("function", [scaled, first_set, part_added, written_out])
def test_writing_to_an_argument_is_refused_with_the_line(transform, function) -> None:
    x = torch.randn(4, 4) if transform is weft.vmap else torch.randn(4)
    before = x.clone()
    with pytest.raises(weft.UnsupportedError, match="writes to its arguments") as error:
        transform(function)(x)
    assert "test_written_arguments.py" in str(error.value)
    torch.testing.assert_close(x, before)


def test_statistics_of_a_module_are_arguments_too() -> None:
    norm = torch.nn.BatchNorm1d(4)
    parameters, buffers = dict(norm.named_parameters()), dict(norm.named_buffers())

    def loss(parameters, buffers, x):
        return torch.func.functional_call(norm, (parameters, buffers), (x,)).pow(2).sum()

    x = torch.randn(3, 4)
    for call in (lambda: weft.grad(loss)(parameters, buffers, x), lambda: weft.vjp(norm, x)):
        with pytest.raises(weft.UnsupportedError, match="writes to its arguments") as error:
            call()
        assert "test_written_arguments.py" in str(error.value) and ".eval()" in str(error.value)
    norm.eval()
    expected = torch.func.grad(loss)(parameters, buffers, x)
    torch.testing.assert_close(weft.grad(loss)(parameters, buffers, x), expected)


def test_clones_of_arguments_are_written_to() -> None:
    x = torch.randn(5)
    torch.testing.assert_close(weft.grad(lambda x: scaled(x.clone()))(x), torch.full_like(x, 2))


def doubled_inside(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.sin()


def in_a_custom_function(x: torch.Tensor) -> torch.Tensor:
    f = weft.func.custom(doubled_inside, vjp=lambda grads, args, results: (grads * args[0].cos(),))
    y = x * 1
    return (f(y) + y).sum()


@pytest.mark.parametrize(
    "call",
    [weft.grad(in_a_custom_function), weft.vmap(in_a_custom_function), lambda x: weft.vjp(in_a_custom_function, x)],
)
def test_a_custom_function_that_writes_to_an_argument_is_refused(call) -> None:
    with pytest.raises(weft.UnsupportedError, match="doubled_inside writes to its arguments") as error:
        call(torch.randn(3, 4))
    line = doubled_inside.__code__.co_firstlineno + 1
    assert f"test_written_arguments.py:{line}" in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        in_a_custom_function,
        lambda x: in_a_custom_function(x.requires_grad_()),
        torch.func.grad(in_a_custom_function),
        torch.func.vmap(in_a_custom_function),
    ],
)
def test_it_is_refused_by_torch_too(call) -> None:
    with pytest.raises(weft.UnsupportedError, match="doubled_inside writes to its arguments") as error:
        call(torch.randn(3, 4))
    assert "test_written_arguments.py" in str(error.value)


DOUBLED = weft.func.custom(doubled_inside, vjp=lambda grads, args, results: (grads * args[0].cos(),))


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.grad])
def test_it_is_refused_while_dynamo_traces(transform) -> None:
    def f(x):
        y = x * 1
        return (DOUBLED(y) + y).sum()

    compiled = torch.compile(transform(f), backend="weft")
    with pytest.raises((weft.UnsupportedError, RuntimeError), match="writes to its arguments") as error:
        compiled(torch.randn(3, 4))
    assert "test_written_arguments.py" in str(error.value)


def test_a_custom_function_that_writes_to_what_it_closes_over_is_refused() -> None:
    count = torch.zeros(3)
    f = weft.func.custom(lambda x: x * count.add_(1), vjp=lambda grads, args, results: (grads * count,))
    with pytest.raises(weft.UnsupportedError, match="writes to a tensor from outside"):
        weft.grad(lambda x: f(x).sum())(torch.randn(3))
    assert not count.any()


def test_a_rule_that_writes_to_an_argument_is_refused() -> None:
    f = weft.func.custom(torch.sin, vjp=lambda grads, args, results: (grads * args[0].cos_(),))
    with pytest.raises(weft.UnsupportedError, match="the vjp rule of sin writes to its arguments"):
        weft.grad(lambda x: f(x).sum())(torch.randn(3))


def test_a_function_without_rules_is_the_function_itself() -> None:
    def total(f, x):
        y = x * 1
        return (f(y) + y).sum()

    x = torch.randn(4, dtype=torch.float64)
    expected = torch.func.grad(lambda x: total(doubled_inside, x))(x)
    torch.testing.assert_close(weft.grad(lambda x: total(weft.func.custom(doubled_inside), x))(x), expected)


def test_a_custom_function_that_closes_over_a_value_of_its_caller_is_refused_with_the_line() -> None:
    def f(x):
        y = x * 2
        return weft.func.custom(lambda z: z * y, vjp=lambda grads, args, results: (grads * y,))(x).sum()

    with pytest.raises(weft.UnsupportedError, match="pass it as an argument") as error:
        weft.grad(f)(torch.randn(3))
    assert "test_written_arguments.py" in str(error.value)
