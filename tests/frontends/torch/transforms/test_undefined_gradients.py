"""Gradients of results that nothing follows: neither made nor read, in every set of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.frontends.torch.transforms import undefined_gradients
from weft.frontends.torch.transforms.double_backward import has_second_derivatives
from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak

from .second_derivatives import needs_second_derivatives

ROWS, WIDTH, CLASSES = 48, 17, 131


def both(hidden: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits, wanted), logits


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", options={"cache": False, "fallback": "error", **options})


def values(rows: int = ROWS, classes: int = CLASSES) -> list[torch.Tensor]:
    hidden, weight = torch.randn(rows, WIDTH, requires_grad=True), torch.randn(classes, WIDTH, requires_grad=True)
    return [hidden, weight, torch.randint(0, classes, (rows,))]


def exact(given: list[torch.Tensor], used: str) -> tuple[torch.Tensor, ...]:
    doubled = [*(each.detach().double().requires_grad_() for each in given[:2]), given[2]]
    return torch.autograd.grad(scalar(both(*doubled), used), doubled[:2])


def scalar(results: tuple[torch.Tensor, torch.Tensor], used: str) -> torch.Tensor:
    loss, logits = results
    return {"loss": loss, "logits": logits.square().mean(), "both": loss + logits.square().mean()}[used]


def backward_arguments(records: Any) -> list[int]:
    plans = [record.plan for record in records if record.name == "backward" and record.plan is not None]
    return [len(plan.inputs) for plan in plans]


def test_zeros_are_no_argument_of_the_program() -> None:
    given = values()
    with recording() as records:
        loss, logits = compiled(both)(*given)
        loss.backward()
    assert backward_arguments(records) == [6], "saved tensors, and the gradient of the loss: none of the logits"
    assert logits.requires_grad


@pytest.mark.parametrize("order", [("loss", "logits", "both", "loss"), ("both", "loss", "logits")])
def test_every_set_of_gradients_is_right(order: tuple[str, ...]) -> None:
    given = values()
    call = compiled(both)
    with recording() as records:
        for used in order:
            found = torch.autograd.grad(scalar(call(*given), used), given[:2])
            for each, expected in zip(found, exact(given, used), strict=True):
                torch.testing.assert_close(each.double(), expected, rtol=1e-5, atol=1e-6)
    assert len(backward_arguments(records)) == 3, "a program for each set, once"


def test_zeros_are_made_where_there_are_too_many_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undefined_gradients, "_MOST_PROGRAMS", 1)
    given = values()
    call = compiled(both)
    for used in ("loss", "logits", "both", "logits"):
        found = torch.autograd.grad(scalar(call(*given), used), given[:2])
        for each, expected in zip(found, exact(given, used), strict=True):
            torch.testing.assert_close(each.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_peak_of_a_step_has_no_zeros() -> None:
    rows, classes = 512, 4096
    given = values(rows, classes)
    call = compiled(both, memory_budget="1.0")
    call(*given)[0].backward()
    given[0].grad = given[1].grad = None
    peak = allocated_peak(lambda: call(*given)[0].backward())
    assert peak < 2.5 * rows * classes * 4, "the logits, which the caller may hold, and their gradient"


def test_retained_graphs_and_hooks() -> None:
    given = values()
    call = compiled(both)
    loss, logits = call(*given)
    seen: list[Any] = []
    logits.register_hook(seen.append)
    first = torch.autograd.grad(loss, given[:2], retain_graph=True)
    second = torch.autograd.grad(loss, given[:2])
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert all(each is None or not each.any() for each in seen)


def test_sizes_that_change() -> None:
    call = compiled(both)
    for rows in (48, 31, 77):
        given = values(rows)
        found = torch.autograd.grad(call(*given)[0], given[:2])
        for each, expected in zip(found, exact(given, "loss"), strict=True):
            torch.testing.assert_close(each.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_result_that_is_written_over_and_one_of_which_nothing_has_a_gradient() -> None:
    def several(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ w).sin(), (x @ w).argmax(1), x * 2, w.t()

    x, w = torch.randn(5, 7, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    call = compiled(several)
    for place in (0, 2, 3):
        expected = torch.autograd.grad(several(x, w)[place].square().sum(), (x, w), allow_unused=True)
        found = torch.autograd.grad(call(x, w)[place].square().sum(), (x, w), allow_unused=True)
        for each, one in zip(found, expected, strict=True):
            assert one is not None or each is None or not each.any()
            if one is not None:
                torch.testing.assert_close(each, one)


@needs_second_derivatives
def test_gradients_of_gradients() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin().sum(), x.cos()

    x = torch.randn(9, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(program)(x)[0], x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -x.sin())


@pytest.mark.skipif(
    not has_second_derivatives(),  # where functions of AOTAutograd have parts that can be exchanged
    reason="before torch 2.13 compiled autograd has to begin before the call: Weft does not see it take the graph",
)
def test_compiled_autograd_that_begins_after_the_call() -> None:
    given = values()
    results = compiled(both)(*given)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        results[0].backward()
    for value, wanted in zip(given, exact(given, "loss"), strict=False):
        torch.testing.assert_close(value.grad, wanted.float(), rtol=1e-4, atol=1e-5)
