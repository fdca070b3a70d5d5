"""Donated buffers: what the forward saved is written over in the backward, unless somebody could still read it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.frontends.torch.execution import donated as donated_buffers
from weft.frontends.torch.execution.donated import with_own_arguments
from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak

ROWS, WIDTH, CLASSES = 96, 33, 517


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


def loss(hidden: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(hidden, weight), wanted)


def values(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    hidden, weight = torch.randn(ROWS, WIDTH).to(dtype), torch.randn(CLASSES, WIDTH).to(dtype)
    return [hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, CLASSES, (ROWS,))]


def gradients(function: Any, given: list[torch.Tensor], **how: Any) -> list[torch.Tensor]:
    for each in given[:2]:
        each.grad = None
    function(*given).backward(**how)
    return [each.grad for each in given[:2] if each.grad is not None]


def donated(function: Any, given: list[torch.Tensor]) -> int:
    with recording() as records:
        gradients(function, given)
    return sum(len(record.plan.donated) for record in records if record.plan is not None)


def test_the_gradient_of_logits_takes_their_place() -> None:
    given = values()
    call = compiled(loss)
    assert donated(call, given)
    exact = gradients(loss, [*(each.detach().double().requires_grad_() for each in given[:2]), given[2]])
    for _ in range(3):
        for found, expected in zip(gradients(call, given), exact, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


def test_logits_and_their_gradient_are_one_in_the_peak() -> None:
    rows, classes = 512, 4096
    hidden, weight = torch.randn(rows, 16, requires_grad=True), torch.randn(classes, 16, requires_grad=True)
    call = compiled(loss, memory_budget="1.0")
    given = [hidden, weight, torch.randint(0, classes, (rows,))]
    gradients(call, given)
    hidden.grad = weight.grad = None
    assert allocated_peak(lambda: call(*given).backward()) < 1.5 * rows * classes * 4


@pytest.mark.parametrize("plain_first", [True, False])
def test_graphs_that_are_retained(plain_first: bool) -> None:
    given = values()
    call = compiled(loss)
    expected = gradients(loss, given)
    if plain_first:  # which compiles a backward for graphs that are not
        gradients(call, given)
    for each in given[:2]:
        each.grad = None
    result = call(*given)
    for times in range(1, 4):
        result.backward(retain_graph=True)
        for each, one in zip(given[:2], expected, strict=True):
            torch.testing.assert_close(each.grad, times * one)
    result.backward()
    torch.testing.assert_close(given[0].grad, 4 * expected[0])


def test_gradients_that_the_forward_made_are_given_as_they_lie() -> None:
    given = values()
    call = compiled(loss, chunked_loss=32)
    expected = gradients(loss, given)
    assert donated(call, given) == 1, "of the weights; that of the rows is small"
    for seed in (1.0, 0.25):
        for each in given[:2]:
            each.grad = None
        (seed * call(*given)).backward()
        for each, one in zip(given[:2], expected, strict=True):
            torch.testing.assert_close(each.grad, seed * one, rtol=1e-4, atol=1e-6)
    held = [each.grad for each in given[:2]]
    before = [each.clone() for each in held if each is not None]
    gradients(call, given)  # of which none may lie where the last lie
    torch.testing.assert_close(held, before)


def test_graphs_that_are_retained_while_inputs_are_recorded() -> None:
    given = values()
    with recording(inputs=True):
        call = compiled(loss)
        for each in given[:2]:
            each.grad = None
        result = call(*given)
        first = torch.autograd.grad(result, given[:2], retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(result, given[:2]), first)


def test_small_tensors_are_not_worth_it() -> None:
    def small(a: torch.Tensor) -> torch.Tensor:
        return torch.sin(a).exp().square().sum()

    a = torch.randn(16, 16, requires_grad=True)
    with recording() as records:
        compiled(small)(a).backward()
    assert [record.plan.donated for record in records if record.plan is not None] == [(), ()]


def test_what_somebody_else_can_read_is_copied() -> None:
    def program(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        return [arguments[0].fill_(-1)]

    class Seed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            for given in (whole.view(2, 2), torch.ones(3)):
                made.append((given, *with_own_arguments(program, (0,))([given])))
            return gradients[0]

    whole, made = torch.ones(4), list[tuple[torch.Tensor, torch.Tensor]]()
    Seed.apply(torch.ones(1, requires_grad=True)).backward()
    (shared, copy), (alone, same) = made
    assert shared.sum() == 4 and copy.sum() == -4
    assert alone.data_ptr() == same.data_ptr() and alone.sum() == -3


def test_a_backward_that_failed_cannot_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would read what it has written over itself."""
    given = values()
    call = compiled(loss)
    gradients(call, given)
    result = call(*given)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(donated_buffers, "_is_alone", fail)
        with pytest.raises(MemoryError):
            result.backward()
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()
    for found, expected in zip(gradients(call, given), gradients(loss, given), strict=True):
        torch.testing.assert_close(found, expected)


def test_saved_outputs_are_left_as_they_are() -> None:
    def both(hidden: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = F.linear(hidden, weight)
        return F.cross_entropy(logits, wanted), logits

    given = values()
    call = compiled(both)
    for _ in range(2):
        result, logits = call(*given)
        before = logits.detach().clone()
        result.backward()
        assert torch.equal(logits, before)
