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
