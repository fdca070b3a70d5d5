"""Tensors that have elements but no memory are made real, or refused by name: nothing is read at address 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import GuardError


def function(x: Tensor) -> Tensor:
    return (x * 2).sin() + 1


@pytest.fixture
def run() -> Callable[[Tensor], Tensor]:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", options={"cache": False})
    compiled(torch.rand(4))
    return compiled


def zeros() -> Tensor:
    return torch._efficientzerotensor(4)


def released() -> Tensor:
    """What sharded training leaves of a parameter that is not needed for now."""
    x = torch.rand(4)
    x.untyped_storage().resize_(0)
    return x


def test_zeros_that_are_only_said_to_be(run: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(run(zeros()), torch.ones(4))


def test_a_gradient_of_such_zeros(run: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4, requires_grad=True)
    run(x).backward(zeros())
    assert x.grad is not None
    assert not x.grad.any()


def test_released_memory(run: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(GuardError, match="no memory"):
        run(released())
    x = torch.rand(4, requires_grad=True)
    result = run(x)
    with pytest.raises(GuardError, match="no memory"):
        result.backward(released())
    torch.testing.assert_close(run(torch.zeros(4)), torch.ones(4))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_fake_tensors(run: Callable[[Tensor], Tensor]) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises(GuardError, match="no memory"):
        run(mode.from_tensor(torch.rand(4)))
    torch.testing.assert_close(run(torch.zeros(4)), torch.ones(4))


def test_meta_tensors_go_to_torch(run: Callable[[Tensor], Tensor]) -> None:
    assert run(torch.rand(4, device="meta")).is_meta
