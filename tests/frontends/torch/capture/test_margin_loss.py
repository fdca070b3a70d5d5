"""`multilabel_margin_loss` is eager's: labels end at -1, which torch's own parts of it overlook."""

from __future__ import annotations

from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.frontends.torch.capture.margin_loss import margins_of_labels

TARGET = torch.tensor([[0, 2, -1, 1, -1], [3, -1, 0, 0, 0], [-1, -1, -1, -1, -1], [4, 4, 1, 0, 2]])
INPUT = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def compiled(**options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(lambda x, t: F.multilabel_margin_loss(x, t, **options), backend="weft", fullgraph=True)


@pytest.mark.parametrize(("reduction", "rows"), [("mean", slice(None)), ("sum", 3), ("none", slice(None)), ("none", 0)])
def test_it_is_eagers_in_training_too(reduction: str, rows: Any) -> None:
    target = TARGET[rows]
    found, expected = [], []
    eager = partial(F.multilabel_margin_loss, reduction=reduction)
    for call, kept in ((compiled(reduction=reduction), found), (eager, expected)):
        x = INPUT[rows].clone().requires_grad_()
        loss = call(x, target)
        kept += [loss, *torch.autograd.grad(loss.sum(), x)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_margins_of_zero_have_no_gradient_and_those_that_are_no_numbers_count_not() -> None:
    rows = [[1.0, 0, 0, 2, 3], [0, 1, 2, 3, 4], [float("nan"), 1, 2, 3, 4], [2, 2, 1, 1, 0]]
    found, expected = [], []
    for call, kept in (
        (compiled(reduction="none"), found),
        (partial(F.multilabel_margin_loss, reduction="none"), expected),
    ):
        x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
        loss = call(x, TARGET)
        kept += [loss, *torch.autograd.grad(loss.sum(), x)]
    torch.testing.assert_close(found, expected)


def test_it_is_eagers_under_transformations() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, TARGET)

    expected = torch.func.grad(loss)(INPUT)
    torch.testing.assert_close(weft.grad(loss)(INPUT), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "target",
    [
        TARGET.index_fill(1, torch.tensor([0]), 5),
        TARGET.index_fill(1, torch.tensor([0]), -2),
        torch.tensor([[0, -1, -3, 0, 0]] * 4),
        TARGET.int(),
        TARGET[:, :4],
    ],
    ids=["too large", "too small", "too small, after the end", "of 32 bits", "of another shape"],
)
def test_what_eager_refuses_is_refused(target: torch.Tensor) -> None:
    for call in (F.multilabel_margin_loss, compiled()):
        with pytest.raises(RuntimeError):
            call(INPUT, target)


def test_torchs_own_parts_are_there_again() -> None:
    op: Any = torch.ops.aten.multilabel_margin_loss_forward.default
    before = dict(op.py_kernels)
    with pytest.raises(ValueError, match="inside"), margins_of_labels():
        raise ValueError("inside")
    assert op.py_kernels == before


def test_torchs_own_parts_are_there_again_after_threads_that_overlap() -> None:
    op: Any = torch.ops.aten.multilabel_margin_loss_forward.default
    before = dict(op.py_kernels)
    first_entered, second_entered, first_left = Event(), Event(), Event()
    kernels: list[Any] = []

    def first() -> None:
        with margins_of_labels():
            first_entered.set()
            assert second_entered.wait(60)
        first_left.set()

    def second() -> None:
        assert first_entered.wait(60)
        with margins_of_labels():
            second_entered.set()
            assert first_left.wait(60)
            kernels.append(dict(op.py_kernels))

    threads = [Thread(target=first), Thread(target=second)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert op.py_kernels == before
    assert len(kernels) == 1 and kernels[0] != before, "the second still traces when the first has left"
