"""Outputs that lie in the memory of arguments: in it, at the place that eager says, however it is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


VIEWS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "half": lambda x, n: x[x.shape[0] // 2 :],
    "from": lambda x, n: (x[n:], x + 1),
    "narrow": lambda x, n: (x.narrow(0, n, 3), x + 1),
    "chunks": lambda x, n: (*x.chunk(2, 1), x + 1),
    "rows": lambda x, n: (x + 1, *x.unbind(0)),
    "turned": lambda x, n: x.t()[n:],
    "of a changed argument": lambda x, n: x.mul_(2)[n:],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_arguments_are_where_eagers_are(name: str, dynamic: bool) -> None:
    compiled = torch.compile(VIEWS[name], backend="weft", dynamic=dynamic)
    # Of an argument that changes, torch itself takes the place in the new value for that in its memory.
    first = 0 if name == "of a changed argument" else 1
    for rows in (7, 9):
        memory = torch.randn(rows + first, 6)
        other = memory.clone()
        expected, given = VIEWS[name](memory[first:], 2), compiled(other[first:], 2)
        torch.testing.assert_close(given, expected)
        for mine, eagers in zip(pytree.tree_leaves(given), pytree.tree_leaves(expected), strict=True):
            shared = eagers.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            assert shared is (mine.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
            assert mine.stride() == eagers.stride()
            assert not shared or mine.storage_offset() == eagers.storage_offset()
        pytree.tree_leaves(given)[0].fill_(3)
        pytree.tree_leaves(expected)[0].fill_(3)
        torch.testing.assert_close(other, memory)


def _twice_and_as(dtype: torch.dtype) -> Callable[[torch.Tensor], Any]:
    return lambda x: ((y := x * 2), y.view(dtype)[..., 1:])


READ_AS_OTHERS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.dtype]] = {
    "parts of a result": (lambda x: ((y := x * 2), y.imag, y.real[1:]), torch.complex64),
    "parts of an argument": (lambda x: (x.imag, torch.view_as_real(x)[2:], x + 1), torch.complex64),
    "pairs": (lambda x: ((y := x.sin()), torch.view_as_complex(y.unflatten(-1, (-1, 2)))), torch.float32),
    "bits": (_twice_and_as(torch.int32), torch.float32),
    "halves of words": (_twice_and_as(torch.int16), torch.float32),
    "bits of an argument": (lambda x: (x.view(torch.int64)[2:], x + 1), torch.float32),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READ_AS_OTHERS)
def test_memory_that_is_read_as_another_type_is_shared(name: str, dynamic: bool) -> None:
    function, dtype = READ_AS_OTHERS[name]
    compiled = torch.compile(function, backend="weft", dynamic=dynamic, options={"fallback": "quiet"})
    x = torch.randn(8, 4, dtype=dtype)[2:]
    other = x.untyped_storage().clone()
    y = torch.empty(0, dtype=dtype).set_(other, x.storage_offset(), x.shape, x.stride())
    expected, given = function(x), compiled(y)
    for mine, eagers in zip(given, expected, strict=True):
        torch.testing.assert_close(mine, eagers, equal_nan=True)
        assert mine.stride() == eagers.stride()
    addresses = ([each.untyped_storage().data_ptr() for each in values] for values in ((*given, y), (*expected, x)))
    mine, eagers = ([row.index(address) for address in row] for row in addresses)
    assert mine == eagers, "which of them lie in one memory"


READ_BY_BITS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "parts": lambda z: (z.imag.reshape(-1)[1:3],),
    "negated parts": lambda z: (z.conj().imag.reshape(-1)[1:3],),
    "negated parts beside a result": lambda z: (z.conj().imag.reshape(-1)[1:3], z.abs()),
    "conjugated": lambda z: (z.conj().reshape(-1)[1:3],),
    "negated": lambda z: (torch.ops.aten._neg_view(z).reshape(-1)[1:3],),
    "of a result": lambda z: ((y := z * 2), y.conj().imag.reshape(-1)[1:3], y.conj().reshape(-1)[2:]),
}


# Torch itself, which makes views of arguments again, does not give parts of such as have bits.
GIVEN_WITH_BITS = ("conjugated", "negated", "of a result")


@pytest.mark.parametrize(
    "given, name",
    [
        *(("plain", name) for name in READ_BY_BITS),
        *((given, name) for given in ("conjugated", "negated") for name in GIVEN_WITH_BITS),
    ],
)
def test_views_with_symbolic_sizes_that_are_negated_or_conjugated_when_they_are_read(given: str, name: str) -> None:
    function = READ_BY_BITS[name]
    compiled = torch.compile(function, backend="weft", dynamic=True, options={"fallback": "quiet"})
    for rows in (4, 5):
        z = torch.randn(rows, 3, dtype=torch.complex64)
        z = {"plain": z, "conjugated": z.conj(), "negated": torch.ops.aten._neg_view(z)}[given]
        for mine, eagers in zip(compiled(z), function(z), strict=True):
            torch.testing.assert_close(mine, eagers)
            shared = eagers.untyped_storage().data_ptr() == z.untyped_storage().data_ptr()
            assert not shared or mine.data_ptr() == eagers.data_ptr()


def test_a_view_of_a_value_that_is_copied_to_an_argument_is_not_one_of_the_argument() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x + 1
        x.copy_(y)
        return y[n:]

    x = torch.randn(9, 4)
    eager = x.clone()
    expected, given = function(eager, 2), torch.compile(function, backend="weft", dynamic=True)(x, 2)
    torch.testing.assert_close(given, expected)
    given.zero_()
    torch.testing.assert_close(x, eager)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_through_views_of_arguments(dynamic: bool) -> None:
    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x[n:], (x.t() * x.t()[:n].sum()).exp()

    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    eager = x.detach().clone().requires_grad_()
    compiled = torch.compile(function, backend="weft", dynamic=dynamic)
    for values, f in ((eager, function), (x, compiled)):
        first, second = f(values, 2)
        (first.square().sum() + second.t().sum()).backward()
    torch.testing.assert_close(x.grad, eager.grad)


TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "both": lambda a, b: (b.view(2, 4), a.view(4, 2)),
    "parts": lambda a, b: (*b.chunk(2), a[3:], a + b),
    "turned": lambda a, b: (a.view(2, 4).t(), b.view(2, 4).t()[1:]),
}


@pytest.mark.parametrize("name", TWO)
def test_views_belong_to_their_own_argument_where_two_shared_memory_while_tracing(name: str) -> None:
    compiled = torch.compile(TWO[name], backend="weft")
    memory = torch.randn(20)
    for a, b in ((memory[:8], memory[4:12]), (torch.randn(8), torch.randn(8)), (memory[6:14], memory[:8])):
        for given, expected in zip(compiled(a, b), TWO[name](a, b), strict=True):
            torch.testing.assert_close(given, expected)
            shared = expected.untyped_storage().data_ptr() in (x.untyped_storage().data_ptr() for x in (a, b))
            assert not shared or given.data_ptr() == expected.data_ptr()


@pytest.mark.parametrize("starts", [(0, 2), (2, 0)])
def test_a_strided_view_counts_from_where_the_memory_of_an_argument_begins(starts: tuple[int, int]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scattered = torch.as_strided_scatter(x, torch.zeros(3), (3,), (1,), 3)
        return torch.as_strided(x, (3,), (1,), 3) * 2, torch.as_strided(x, (3,), (2,)) * 2, scattered

    memory = torch.randn(20)
    compiled = torch.compile(function, backend="weft")
    for start in starts:  # tracing guards the strides of an argument, and not where it starts
        x = memory[start : start + 8]
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("differentiable", [False, True])
def test_complex_results_are_memory_of_their_own_that_can_be_written_to(differentiable: bool) -> None:
    """In Weft they are pairs of parts: as views of these they could not take what has a gradient."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2j, torch.fft.rfft(x.real), torch.zeros_like(x) + 1

    gradients: list[torch.Tensor | None] = []
    for f in (function, torch.compile(function, backend="weft")):
        x = torch.linspace(-1, 1, 16).view(2, 8).to(torch.complex64).requires_grad_(differentiable)
        product, spectrum, ones = f(x)
        assert not any(each._is_view() for each in (product, spectrum, ones))
        product.mul_(3)
        spectrum[:, 0] = x[:, 0]
        weight = torch.ones(2, 2, dtype=torch.complex64, requires_grad=True)
        ones[:, :2] = weight * 2
        sum(torch.view_as_real(each).square().sum() for each in (product, spectrum, ones)).backward()
        gradients += [x.grad, weight.grad]
    torch.testing.assert_close(gradients[:2], gradients[2:])
