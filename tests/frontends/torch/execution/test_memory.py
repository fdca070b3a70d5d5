"""What results lie in: memory that nobody holds any more, and for updates what they replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.frontends.torch.execution.outputs import ResultMemory
from weft.runtime.huge_pages import LARGE
from weft.runtime.record import recording

SIDE = 1024  # of f32: 4 MiB, large


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


def test_memory_of_dropped_results_is_used_again() -> None:
    f = compiled(lambda x: x + 1)
    x = torch.randn(SIDE, SIDE)
    first = f(x)
    place = first.data_ptr()
    del first
    assert f(x).data_ptr() == place


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda tensor: tensor,
    "view": lambda tensor: tensor[5:, ::2],
    "numpy": lambda tensor: tensor.numpy(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "autograd": lambda tensor: torch.ones(SIDE, SIDE, requires_grad=True) * tensor,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_holds_stays(holder: str) -> None:
    f = compiled(lambda x: x + 1)
    x = torch.randn(SIDE, SIDE)
    first = f(x)
    held = HOLDERS[holder](first)
    place = first.data_ptr()
    del first
    for _ in range(5):
        assert f(x).data_ptr() != place
    del held


def test_results_of_many_calls_differ() -> None:
    f = compiled(lambda x: x * 2)
    inputs = [torch.full((SIDE, SIDE), float(n)) for n in range(6)]
    results = [f(x) for x in inputs]
    for n, result in enumerate(results):
        assert (result == 2 * n).all()


def test_sizes_that_are_gone_are_given_back() -> None:
    memory = ResultMemory()
    for rows in range(1, 9):
        memory.tensor((rows, LARGE), (LARGE, 1), torch.uint8)
    kept = sum(len(blocks) for blocks in memory._blocks.values())  # pyright: ignore[reportPrivateUsage]
    assert kept == 1


def test_an_argument_is_written_over() -> None:
    def update(p: torch.Tensor, g: torch.Tensor) -> None:
        p.sub_(g * 0.5)

    f = compiled(update)
    p, g = torch.randn(33, 17), torch.randn(33, 17)
    expected, version = p - g * 0.5, p._version
    with recording() as records:
        f(p, g)
    torch.testing.assert_close(p, expected)
    assert p._version > version
    (plan,) = (record.plan for record in records)
    assert plan is not None and plan.replacing == (0,)
    assert not [buffer for buffer in plan.buffers if buffer.role == "output"]


def test_an_argument_that_is_also_given_out_is_not_shared() -> None:
    def update(p: torch.Tensor) -> torch.Tensor:
        new = p * 2
        p.copy_(new)
        return new

    f = compiled(update)
    p = torch.randn(9, 5)
    expected = p * 2
    new = f(p)
    p.zero_()
    torch.testing.assert_close(new, expected)


def test_an_argument_with_other_strides_than_traced() -> None:
    def update(p: torch.Tensor) -> None:
        p.mul_(2).add_(1)

    f = compiled(update)
    for p in (torch.randn(6, 8), torch.randn(8, 6).t(), torch.randn(6, 16)[:, ::2], torch.randn(6, 1).expand(6, 8)):
        p = p.clone(memory_format=torch.preserve_format) if 0 in p.stride() else p
        expected = p * 2 + 1
        f(p)
        torch.testing.assert_close(p, expected)


def test_reading_the_old_value_elsewhere() -> None:
    def update(p: torch.Tensor) -> torch.Tensor:
        old = p.flip(0)
        p.mul_(3)
        return old + p.t()

    f = compiled(update)
    p = torch.randn(8, 8)
    reference = p.clone()
    expected = update(reference)
    torch.testing.assert_close(f(p), expected)
    torch.testing.assert_close(p, reference)


def test_two_updates_of_a_cache() -> None:
    def update(cache: torch.Tensor, first: torch.Tensor, second: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, first)
        cache.index_copy_(0, at + 2, second)
        return cache.sum(0)

    f = compiled(update)
    cache, at = torch.randn(12, 7), torch.tensor([1, 4])
    first, second = torch.randn(2, 7), torch.randn(2, 7)
    reference = cache.clone()
    expected = update(reference, first, second, at)
    with recording() as records:
        torch.testing.assert_close(f(cache, first, second, at), expected)
    torch.testing.assert_close(cache, reference)
    plan = records[0].plan
    assert plan is not None and len(plan.replacing) == 1


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
def test_optimizer_steps_have_no_fallback(make: Any) -> None:
    shapes = [(7, 5), (5,), (3, 2, 4)]
    own = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    eager = [torch.nn.Parameter(p.detach().clone()) for p in own]
    optimizers = [make(parameters, lr=0.1, foreach=True) for parameters in (own, eager)]
    step = compiled(optimizers[0].step)
    with recording() as records:
        for _ in range(3):
            for p, q in zip(own, eager, strict=True):
                p.grad = torch.randn_like(p)
                q.grad = p.grad.clone()
            step()
            optimizers[1].step()
    for p, q in zip(own, eager, strict=True):
        torch.testing.assert_close(p, q)
    assert not [fallback for record in records for fallback in record.fallbacks]


def test_memory_of_many_sizes_is_bounded() -> None:
    f = compiled(lambda x: (x.exp() @ x.mT).softmax(-1))
    for rows in range(2, 40):
        torch._dynamo.mark_dynamic(x := torch.randn(rows, 16), 0)
        torch.testing.assert_close(f(x), (x.exp() @ x.mT).softmax(-1))


@pytest.mark.parametrize("second", [lambda y: y, torch.clone, lambda y: y * 1], ids=["same", "clone", "times one"])
def test_equal_results_have_memory_of_their_own(second: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, second(x + 1)

    first, other = compiled(twice)(torch.ones(5))
    first.zero_()
    assert (other == 2).all()


def test_equal_results_have_strides_of_their_own() -> None:
    f = compiled(lambda x: (x.t() + 1, x.t().contiguous() + 1))
    assert [result.stride() for result in f(torch.ones(4, 8))] == [(1, 8), (4, 1)]


def test_shared_memory_is_not_used_again() -> None:
    f = compiled(lambda x: x + 1)
    x = torch.randn(SIDE, SIDE)
    first = f(x)
    place = first.share_memory_().data_ptr()
    del first
    assert f(x).data_ptr() != place


def test_what_is_released_is_not_taken_again() -> None:
    memory = ResultMemory()
    first = memory.tensor((LARGE,), (1,), torch.float32)
    first.fill_(1)
    memory.release()
    second = memory.tensor((LARGE,), (1,), torch.float32)
    second.fill_(2)
    assert first.data_ptr() != second.data_ptr() and float(first[0]) == 1


def test_storages_that_nobody_holds_are_counted_as_this_python_counts() -> None:
    memory = ResultMemory()
    shape, strides = (1 << 20,), (1,)
    first = memory.tensor(shape, strides, torch.float32)
    address = first.data_ptr()
    view = first[3:]
    assert memory.tensor(shape, strides, torch.float32).data_ptr() != address
    del first
    assert memory.tensor(shape, strides, torch.float32).data_ptr() != address
    del view
    assert address in {memory.tensor(shape, strides, torch.float32).data_ptr() for _ in range(3)}


def planned_bytes(function: Any, *arguments: torch.Tensor) -> int:
    """How many bytes a program takes beside its results, and that it computes what eager does."""
    with recording() as records:
        found = compiled(function)(*arguments)
    torch.testing.assert_close(found, function(*arguments))
    return sum(sum(record.arenas.values()) for record in records)


def test_what_torch_puts_together_twice_is_put_together_once() -> None:
    assert planned_bytes(torch.block_diag, torch.randn(1, 5), torch.randn(3), torch.randn(4000, 5)) == 0


def test_a_sum_of_products_takes_no_memory_for_each() -> None:
    x, left, right = (torch.randn(*each).double() for each in ((5, 10), (4000, 5, 5), (4000, 5, 10)))
    assert planned_bytes(torch.addbmm, x, left, right) <= 1.1 * left.nbytes
    narrow = right[..., :2].clone()
    assert planned_bytes(torch.addbmm, x[:, :2], left, narrow) <= 1.1 * narrow.nbytes
