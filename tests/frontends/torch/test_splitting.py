"""Sizes that only data decide cut a graph: what lies around them is compiled, with the new sizes as symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from weft.runtime.record import CompilationRecord, recording


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield
    torch.compiler.reset()


def places(x: torch.Tensor) -> Any:
    y = torch.softmax(x * 2, -1)
    found = torch.nonzero(y > 0.2)
    torch._check(found.shape[0] <= 12)
    return (found.double() * 2 + 1).sum(0), y.exp()


def chosen(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x @ w).relu()
    taken = y[y > 0.5]
    return (taken * 2).sin().sum() + y.mean(), taken.exp(), torch.masked_select(taken, taken > 1) + 1


def sliced(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    k = count.item()
    torch._check(k >= 0)
    torch._check(k <= 3)
    return x.sin()[:k].exp() + x.new_full((k, 4), 2.0)


def written(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    found = torch.nonzero(x > 0).squeeze(1)
    before = buffer.exp()
    buffer.add_(before)
    return x[found] * 2 + before.sum()


def drawn(x: torch.Tensor) -> Any:
    first = torch.rand(3, dtype=x.dtype)
    found = torch.nonzero(x > 0)
    return torch.rand(2, dtype=x.dtype) + 1, found * 2, first + torch.rand(3, dtype=x.dtype)


def twice(x: torch.Tensor) -> Any:
    """Both masks have one symbol, and the second size is read before the first part is run."""
    return x[x > 0], x[x > 0].sum(0), torch.nonzero(x > 0)


def different(x: torch.Tensor) -> Any:
    values, inverse, counts = torch.unique(torch.round(x), return_inverse=True, return_counts=True)
    return values * 2 + 1, inverse + 1, (counts.double() * values).sum(), torch.unique_consecutive(values > 0) + 1


KNOWS_PLACES = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="this release of torch traces the places of unique values as floats"
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (places, [(random(3, 4),), (random(3, 4),), (torch.full((3, 4), -1.0, dtype=torch.float64),)]),
        (chosen, [(random(5, 6), random(6, 7)), (random(5, 6) * 3, random(6, 7)), (random(5, 6) * 0, random(6, 7))]),
        (sliced, [(random(3, 4), torch.tensor(count)) for count in (2, 3, 2)]),
        (written, [(random(9), random(9)), (random(9), random(9))]),
        (drawn, [(random(9),), (random(9),)]),
        (twice, [(random(9),), (random(9) - 9,)]),
        pytest.param(different, [(random(9),), (random(9) * 3,)], marks=KNOWS_PLACES),
    ],
)
def test_parts_around_such_sizes_are_compiled(function: Callable[..., Any], inputs: list[Any]) -> None:
    with recording() as records:
        compiled = torch.compile(function, backend="weft", fullgraph=True)
        for given in inputs:
            ours, theirs = [each.clone() for each in given], [each.clone() for each in given]
            torch.manual_seed(3)
            expected = function(*theirs)
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(*ours), expected)
            torch.testing.assert_close(ours, theirs)
    check_records(records)
    assert len(records) < 2 * len(inputs) + 2, "other counts are not compiled for"


def check_records(records: list[CompilationRecord]) -> None:
    assert all(record.source != "torch" and record.error is None for record in records)
    assert any(record.kernels for record in records)
    assert {
        fallback.reason for record in records for fallback in record.fallbacks if "rand" not in fallback.target
    } <= {
        "the size of its result is only known when it has run",
        "a mask as an index has a result whose size depends on data",
    }


def test_gradients_go_through_them() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).tanh()
        taken = y[y > 0.1]
        return (taken * taken).sum() + y.sum()

    x, w = random(5, 6), random(6, 7).requires_grad_()
    with recording() as records:
        torch.compile(loss, backend="weft", fullgraph=True)(x, w).backward()
    found, w.grad = w.grad, None
    loss(x, w).backward()
    torch.testing.assert_close(found, w.grad)
    check_records(records)


def test_what_is_asserted_of_such_a_size_is_checked_when_it_is_known() -> None:
    def few(x: torch.Tensor) -> torch.Tensor:
        found = torch.nonzero(x)
        torch._check(found.shape[0] <= 3)
        return found * 2

    compiled = torch.compile(few, backend="weft", fullgraph=True)
    assert compiled(torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0])).flatten().tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="u0 <= 3"):
        compiled(torch.ones(5))


def test_weights_of_parts_are_frozen() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).double()
    after = nn.Linear(8, 4).double()

    def rows(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return after(y[y.sum(1) > 0])

    x = random(6, 8)
    with torch.no_grad(), recording() as records:
        compiled = torch.compile(rows, backend="weft", options={"freeze": True})
        torch.testing.assert_close(compiled(x), rows(x))
        after.weight.data.mul_(2)
        torch.testing.assert_close(compiled(x), rows(x))
    assert [bool(record.plan and record.plan.fixed) for record in records] == [True, True]


@pytest.mark.parametrize("options", [{"strict": True}, {"fallback": "error"}])
def test_they_can_be_refused(options: dict[str, Any]) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"first aten\.nonzero\.default"):
        torch.compile(places, backend="weft", options=options)(random(3, 4))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loop_that_stacks_its_turns_is_compiled(count: int) -> None:
    def looped(count: torch.Tensor, x: torch.Tensor, step: torch.Tensor) -> Any:
        def going(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return count > 0

        def turn(count: torch.Tensor, x: torch.Tensor) -> Any:
            return count - 1, torch.tanh(x + step)

        left, stacked = torch._higher_order_ops.while_loop_stack_output(going, turn, (count, x.exp()), ())
        return left, stacked * 2

    x, step = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    turns, state = list[torch.Tensor](), x.exp()
    for _ in range(count):
        turns.append(state := torch.tanh(state + step))
    expected = torch.stack(turns or [state]) * 2
    compiled = torch.compile(looped, backend="weft", fullgraph=True, options={"fallback": "error", "cache": False})
    left, stacked = compiled(torch.tensor(count), x, step)
    assert left.tolist() == (list(reversed(range(count))) or [count])
    torch.testing.assert_close(stacked, expected)
