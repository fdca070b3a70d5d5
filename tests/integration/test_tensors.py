"""Tensors of every kind go in and come out as in eager: memory, strides, sizes, element types, NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Check = Callable[..., Any]
T = torch.Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def mutate(x: T) -> T:
    x.add_(1)
    return x * 2


def mutate_view(x: T) -> T:
    x[1].mul_(2)
    x[:, ::2].zero_()
    return x.sum(0)


def mutate_twice(x: T, y: T) -> T:
    x.copy_(y)
    y.mul_(x)
    x += 1
    return x


def return_view(x: T) -> tuple[T, T, T]:
    return x.t(), x[1:, ::2], x.view(-1)


def return_argument(x: T, y: T) -> tuple[T, T, None, int]:
    return x, y + 1, None, 3


def return_twice(x: T) -> tuple[T, T, T]:
    y = x + 1
    return y, y, y.t()


def overlapping_results(x: T) -> tuple[T, T, T]:
    y = x * 2
    return y[:2], y[1:], y.expand(2, *y.shape)


def mutated_view_is_returned(x: T) -> tuple[T, T]:
    y = x[1:]
    y.add_(1)
    return y, x


def in_place_on_fresh(x: T) -> tuple[T, T]:
    y = x.clone()
    z = y[0]
    z.fill_(7)
    return y, z


@pytest.mark.parametrize(
    "function",
    [
        mutate,
        mutate_view,
        return_view,
        return_twice,
        overlapping_results,
        mutated_view_is_returned,
        in_place_on_fresh,
    ],
)
def test_mutation_and_aliasing(check: Check, function: Callable[..., Any]) -> None:
    check(function, torch.randn(4, 6), exact=True)


@pytest.mark.parametrize("function", [mutate_twice, return_argument])
def test_two_arguments(check: Check, function: Callable[..., Any]) -> None:
    check(function, torch.randn(4, 6), torch.randn(4, 6), exact=True)


def test_an_argument_is_returned_as_itself() -> None:
    x = torch.randn(3)
    assert torch.compile(lambda x: (x, x + 1), backend="weft")(x)[0] is x


def test_arguments_that_share_memory(check: Check) -> None:
    def function(x: T, y: T) -> T:
        x.add_(1)
        return y * 2

    base = torch.randn(10)
    # Symbolic sizes together with shared memory are more than torch itself can trace.
    check(function, base, base, exact=True, dynamic=False)
    check(function, base[:6], base[2:8], exact=True, dynamic=False)
    check(function, base.view(2, 5), base, exact=True, dynamic=False)


def test_results_of_one_call_survive_the_next() -> None:
    run = torch.compile(lambda x: (x + 1, x.sum()), backend="weft")
    first = run(torch.zeros(4))
    run(torch.ones(4))
    assert first[0].tolist() == [1.0] * 4 and first[1].item() == 0


STRIDED = {
    "contiguous": lambda: torch.randn(2, 4, 6, 8),
    "transposed": lambda: torch.randn(8, 6, 4, 2).permute(3, 2, 1, 0),
    "every second": lambda: torch.randn(2, 4, 6, 16)[..., ::2],
    "reversed rows": lambda: torch.randn(2, 4, 6, 8).flip(1)[:, 1:],
    "offset": lambda: torch.randn(2 * 4 * 6 * 8 + 3)[3:].view(2, 4, 6, 8),
    "expanded": lambda: torch.randn(4, 1, 8).expand(2, 4, 6, 8),
    "expanded number": lambda: torch.tensor(2.5).expand(2, 4, 6, 8),
    "channels last": lambda: torch.randn(2, 4, 6, 8).contiguous(memory_format=torch.channels_last),
    "padded rows": lambda: torch.randn(2, 4, 6, 11)[..., :8],
    "overlapping": lambda: torch.randn(60).as_strided((2, 4, 6, 8), (3, 2, 1, 5)),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_strides(check: Check, kind: str) -> None:
    def function(x: T) -> tuple[T, ...]:
        return (
            x + 1,
            x.sin().sum(1),
            torch.softmax(x, 1),
            x.transpose(1, 2) * 2,
            x.mean((2, 3), keepdim=True),
            x.neg().t_copy() if x.dim() == 2 else -x,
        )

    check(function, STRIDED[kind]())


@pytest.mark.parametrize("kind", ["transposed", "every second", "offset", "channels last", "padded rows"])
def test_mutated_arguments_keep_their_strides(check: Check, kind: str) -> None:
    check(mutate, STRIDED[kind](), exact=True)


def test_strides_of_another_call_are_not_the_first_ones(check: Check) -> None:
    def function(x: T) -> tuple[T, T]:
        return x * 2 + 1, x.sum(0)

    run = torch.compile(function, backend="weft")
    for x in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(8, 6)[::2], torch.randn(1, 6).expand(4, 6)):
        check.agree(function, run, x)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0), (2, 0, 4), (1, 1, 1)], ids=str)
def test_sizes_without_extent(check: Check, shape: tuple[int, ...]) -> None:
    def function(x: T, y: T) -> tuple[T, ...]:
        return x * y + 1, x.sum(), (x > y).all(), x.reshape(-1) - 1, torch.cat([x.view(-1), y.view(-1)]), x.clone()

    check(function, torch.randn(shape), torch.randn(shape))
    check(mutate, torch.randn(shape), exact=True)


def test_products_without_extent(check: Check) -> None:
    for m, k, n in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (0, 0, 0)]:
        check(lambda a, b: a @ b + 1, torch.randn(m, k), torch.randn(k, n))
    check(lambda x: (x.mean(1), x.var(1), x.sum(1), x.prod(1)), torch.randn(3, 0))


def test_a_reduction_of_nothing_raises_as_in_eager() -> None:
    with pytest.raises(Exception, match=r"max\(\)|reduction"):
        torch.compile(lambda x: x.max(), backend="weft")(torch.randn(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(check: Check, dtype: torch.dtype) -> None:
    def function(x: T, y: T) -> tuple[T, ...]:
        return (
            x + y,
            x * 0.1,
            x / y,
            x.exp(),
            x.sum(-1),
            torch.softmax(x, -1),
            x.max(-1).values,
            x.to(torch.int32),
            x @ y.t(),
        )

    check(function, torch.randn(5, 17).to(dtype), torch.randn(5, 17).to(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(check: Check, dtype: torch.dtype) -> None:
    def function(x: T, y: T) -> tuple[T, ...]:
        return x + y, x * y, x - y, x / y, x // y, x % y, x & y, x << 1, x.sum(), x.max(), x < y, x.float(), x.cumsum(0)

    limits = torch.iinfo(dtype)
    x = torch.randint(limits.min, limits.max, (4, 19), dtype=dtype)
    y = torch.randint(1, 100, (4, 19), dtype=dtype)
    check(function, x, y, exact=True)


def test_bools(check: Check) -> None:
    def function(x: T, y: T) -> tuple[T, ...]:
        return x & y, x | y, ~x, x ^ y, x + y, x * y, x.sum(), x.any(), x.all(1), torch.where(x, 1.5, 0.0), x.int()

    check(function, torch.rand(5, 7) > 0.5, torch.rand(5, 7) > 0.5, exact=True)


def test_mixed_types_promote_as_in_eager(check: Check) -> None:
    def function(a: T, b: T, c: T, d: T) -> tuple[T, ...]:
        return a + b, a * c, b * c, c + d, a + 1, a + 1.5, c + 1.5, b / 2, d * 2, torch.where(d, a, c)

    check(
        function,
        torch.randint(-9, 9, (6,), dtype=torch.int8),
        torch.randint(-9, 9, (6,)),
        torch.randn(6).half(),
        torch.rand(6) > 0.5,
    )


def test_nan_and_infinities_flow(check: Check) -> None:
    def function(x: T) -> tuple[T, ...]:
        return (
            *(x + 1, x * 0, x - x, x.exp(), x.log(), x.sqrt(), x.tanh(), x.sigmoid(), x.relu(), x.clamp(-1, 1)),
            *(x.sum(), x.max(), x.min(), x.mean(), x.isnan(), x.isinf(), x > 0, x == x, x != x, x.sign(), x.floor()),
            *(torch.maximum(x, x.flip(0)), torch.softmax(x, 0), x.argmax(), torch.nan_to_num(x), x.cumsum(0)),
            torch.where(x > 0, x, -x),
        )

    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1e-45, -1e-45, 3e38, -3e38]
    for dtype in FLOATS:
        check(function, torch.tensor(values).to(dtype))
    finite = torch.tensor([float("-inf"), float("-inf"), float("-inf")])
    check(lambda x: (torch.softmax(x, 0), torch.logsumexp(x, 0), x.max()), finite)


def test_the_sign_of_zero_survives() -> None:
    x = torch.tensor([0.0, -0.0])
    actual = torch.compile(lambda x: (x * 1, x + 0.0, -x, x.abs(), x.sqrt()), backend="weft")(x)
    expected = (x * 1, x + 0.0, -x, x.abs(), x.sqrt())
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(torch.signbit(a), torch.signbit(e))


def test_a_lazy_negation_is_seen(check: Check) -> None:
    z = torch.randn(4, dtype=torch.complex64)
    check(lambda x: x * 2, z.conj().imag)
    check(lambda x: x * 2, z.conj())


def test_offsets_past_two_to_the_31(check: Check) -> None:
    # The memory is reserved and not touched, except for the places that are read and written.
    base = torch.empty(2**31 + 64, dtype=torch.int8)
    base[-64:] = torch.arange(64)
    base[:64] = torch.arange(64)
    x = base.as_strided((2, 64), (2**31, 1))
    run = torch.compile(lambda x: (x + 1, x.sum(1), x.t() * 2), backend="weft")
    for a, e in zip(run(x), (x + 1, x.sum(1), x.t() * 2), strict=True):
        assert torch.equal(a, e)
    run = torch.compile(lambda x: x.add_(1), backend="weft")
    run(x)
    assert base[:64].tolist() == list(range(1, 65)) and base[-64:].tolist() == list(range(1, 65))


def test_a_row_of_more_than_two_to_the_31_places(check: Check) -> None:
    x = torch.zeros(1, dtype=torch.int8).expand(2**31 + 5)
    run = torch.compile(lambda x: (x[-3:] + 1, x[2**31 :] + x[:5]), backend="weft")
    tail, both = run(x)
    assert tail.tolist() == [1] * 3 and both.tolist() == [0] * 5
    base = torch.empty(2**31 + 5, dtype=torch.uint8)
    base[-5:] = torch.arange(5)
    assert torch.compile(lambda x: x[-5:] * 2, backend="weft")(base).tolist() == [0, 2, 4, 6, 8]


def test_tensors_on_another_device_run_as_in_eager() -> None:
    x = torch.randn(3, 4, device="meta")
    y = torch.compile(lambda x: (x + 1).sum(0), backend="weft")(x)
    assert y.device.type == "meta" and y.shape == (4,)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool], ids=str)
def test_more_than_two_to_the_31_elements(dtype: torch.dtype) -> None:
    x = torch.zeros(2**31 + 5, dtype=dtype)
    x[-3:] = 1
    y = torch.compile(lambda x: x + x if x.dtype != torch.bool else ~x, backend="weft")(x)
    assert y.shape == x.shape and y[:4].tolist() == ([0] * 4 if dtype == torch.int8 else [True] * 4)
    assert y[-4:].tolist() == ([0, 2, 2, 2] if dtype == torch.int8 else [True, False, False, False])
    assert y[2**31 - 2 : 2**31 + 2].sum().item() == (0 if dtype == torch.int8 else 4)
