"""Torch's symbolic integers become sizes, and calls give the symbols their values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from weft.errors import UnsupportedError
from weft.frontends.torch.importer.sizes import Source, read_symbols, size_of
from weft.ir.expr import evaluate, maximum, symbol

S, T = symbol("s0"), symbol("s1")


@pytest.fixture
def numbers() -> tuple[torch.SymInt, torch.SymInt]:
    """Two sizes of a shape environment."""
    environment = ShapeEnv()

    def size(name: str, hint: int) -> torch.SymInt:
        source = ConstantSource(name)
        symbol_ = environment.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        made = environment.create_symintnode(symbol_, hint=hint, source=source)
        assert isinstance(made, torch.SymInt)
        return made

    return size("a", 12), size("b", 7)


@pytest.mark.parametrize(
    "expression",
    [
        lambda a, b: a * b + 3,
        lambda a, b: (a + 1) * (b - 2),
        lambda a, b: a // 2 + b % 3,
        lambda a, b: a**2 * 4,
        lambda a, b: (a - 1) // 2 + 1,
        lambda a, b: torch.sym_max(a, b),
        lambda a, b: torch.sym_min(a * 2, b + 5),
    ],
)
def test_expressions_keep_their_value(numbers: tuple[torch.SymInt, torch.SymInt], expression: object) -> None:
    a, b = numbers
    made = expression(a, b)  # type: ignore[operator]
    values = {str(a): 12, str(b): 7}
    assert evaluate(size_of(made), values) == expression(12, 7)  # type: ignore[operator]


def test_plain_integers_stay() -> None:
    assert size_of(4) == 4


def test_symbols_are_read_where_they_stand_alone_first() -> None:
    reader = read_symbols([(Source(0, 1), S * 4), (Source(1), S), (Source(2, 0), T)], {"s0", "s1"})
    assert [(rule.name, rule.source) for rule in reader.rules] == [("s0", Source(1)), ("s1", Source(2, 0))]
    assert reader([None, 3, torch.zeros(5, 2)]) == {"s0": 3, "s1": 5}


def test_symbols_are_solved_for() -> None:
    reader = read_symbols([(Source(0, 0), S * 4 + 2), (Source(0, 1), T + S)], {"s0", "s1"})
    assert reader([torch.zeros(14, 10)]) == {"s0": 3, "s1": 7}


def test_symbols_that_nobody_needs_are_not_read() -> None:
    assert read_symbols([(Source(0), S), (Source(1), T)], {"s1"}).rules[0].name == "s1"


def test_a_symbol_that_no_argument_tells_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="s1"):
        read_symbols([(Source(0, 0), S), (Source(0, 1), maximum(T, 4))], {"s0", "s1"})


@pytest.mark.parametrize(("factor", "mode"), [(2.0, "bicubic"), (1.5, "nearest"), (2.5, "bilinear")])
def test_sizes_may_be_multiplied_with_exact_fractions(factor: float, mode: str) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode) * 2

    torch.compiler.reset()
    run = torch.compile(resized, backend="weft", dynamic=True, fullgraph=True, options={"fallback": "error"})
    for sizes in ((6, 9), (7, 11), (12, 5)):
        x = torch.randn(2, 3, *sizes, dtype=torch.float64)
        torch.testing.assert_close(run(x), resized(x))


@pytest.mark.parametrize(("factor", "mode"), [(0.7, "nearest"), (0.29, "bilinear"), (0.7, "area")])
def test_sizes_may_be_multiplied_with_factors_that_are_rounded(factor: float, mode: str) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.sin(), scale_factor=factor, mode=mode) * 2

    torch.compiler.reset()
    run = torch.compile(resized, backend="weft", dynamic=True, fullgraph=True, options={"fallback": "error"})
    for sizes in ((10, 9), (100, 31), (30, 57)):  # 0.29 * 100 is less than 29
        x = torch.randn(2, 3, *sizes, dtype=torch.float64)
        torch.testing.assert_close(run(x), resized(x))
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(run(x).sum(), x), torch.autograd.grad(resized(x).sum(), x))


@pytest.mark.parametrize("viewed", [lambda x: x.view(-1, 10), lambda x: x.view(-1, 2, 5), lambda x: x.view(5, -1)])
def test_sizes_that_must_be_multiples_are_divided(viewed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def cut(x: torch.Tensor) -> torch.Tensor:
        return viewed(x + 1).sum(-1) * 2

    torch.compiler.reset()
    run = torch.compile(cut, backend="weft", dynamic=True, fullgraph=True, options={"fallback": "error"})
    for count in (30, 40, 700, 10):  # where one row is left, torch assumes that and traces anew
        x = torch.randn(count, dtype=torch.float64)
        torch.testing.assert_close(run(x), cut(x))
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(run(x).sum(), x), torch.autograd.grad(cut(x).sum(), x))


def guided(x: torch.Tensor) -> torch.Tensor:
    without, given = x.exp().chunk(2)
    return without + 3 * (given - without)


def gated(x: torch.Tensor) -> torch.Tensor:
    first, second, third = x.t().chunk(3, 1)
    return first * second.sigmoid() + third


@pytest.mark.parametrize("function", [guided, gated])
def test_chunks_of_a_symbolic_size_that_are_added_are_of_one_size(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.compiler.reset()
    run = torch.compile(function, backend="weft", dynamic=True, fullgraph=True, options={"fallback": "error"})
    for count in (12, 30, 18, 6):
        x = torch.randn(count, 5, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(run(x), function(x))
        torch.testing.assert_close(torch.autograd.grad(run(x).sum(), x), torch.autograd.grad(function(x).sum(), x))


@pytest.mark.parametrize("trained", [False, True])
def test_attention_over_arguments_whose_lengths_have_symbols_of_their_own(trained: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    torch.compiler.reset()
    run = torch.compile(attend, backend="weft", fullgraph=True, options={"fallback": "error"})
    for rows, count in ((5, 5), (9, 9), (1, 7), (3, 4)):
        q = torch.randn(2, 2, rows, 8, requires_grad=trained)
        k, v = (torch.randn(2, 2, count, 8, requires_grad=trained) for _ in range(2))
        torch.testing.assert_close(run(q, k, v), attend(q, k, v))
        if trained:
            found, wanted = (torch.autograd.grad(f(q, k, v).sin().sum(), (q, k, v)) for f in (run, attend))
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shift", [0, 1])
def test_tokens_and_labels_whose_sizes_have_symbols_of_their_own(shift: int) -> None:
    """A loss asks that their products are equal; its gradient, that both are."""

    def loss(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = (x @ w)[:, : x.shape[1] - shift]
        return F.cross_entropy(scores.flatten(0, 1), labels[:, shift:].flatten(), ignore_index=3)

    torch.compiler.reset()
    run = torch.compile(loss, backend="weft", fullgraph=True, options={"fallback": "error"})
    w = torch.randn(6, 11, dtype=torch.float64, requires_grad=True)
    for batch, length in ((2, 7), (3, 12), (5, 5), (4, 3)):
        x = torch.randn(batch, length, 6, dtype=torch.float64)
        labels = torch.arange(batch * length).view(batch, length) % 11
        torch.testing.assert_close(run(x, w, labels), loss(x, w, labels))
        torch.testing.assert_close(
            torch.autograd.grad(run(x, w, labels), w), torch.autograd.grad(loss(x, w, labels), w)
        )


RESHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rest of a size that comes last": lambda x: (x * 2).reshape(x.shape[2], -1) + 1,
    "that rest as a size": lambda x: x.reshape(x.shape[2], -1) + torch.ones(x.reshape(x.shape[2], -1).shape),
    "a number of columns": lambda x: (x.view(-1, 4).exp() * torch.arange(4)).view(x.shape).sum(1),
    "a number of rows": lambda x: x.view(2, -1).exp(),
    "twice a size": lambda x: x.reshape(x.shape[0] * 2, -1).softmax(1),
    "the rest in the middle": lambda x: x.reshape(x.shape[2], -1, 2).sum(1),
    "windows that are known to fill a size": lambda x: (
        x.unfold(2, 2, 2).reshape(x.shape[0], -1) + x.reshape(x.shape[0], -1)
    ),
}


@pytest.mark.parametrize("function", RESHAPES.values(), ids=RESHAPES)
def test_what_is_left_of_several_symbolic_sizes_is_a_size(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", dynamic=True, options={"fallback": "error", "cache": False})
    for shape in ((4, 6, 8), (12, 8, 6)):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = compiled(x), function(y)
        torch.testing.assert_close(found, expected)
        weight = torch.randn(expected.shape)
        (found * weight).sum().backward()
        (expected * weight).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_windows_of_lengths_that_are_padded_each_by_itself() -> None:
    """How many rows a window of each has is a quotient of two sizes, which must be 8 for all of them."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 0, -x.shape[1] % 8))

    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, k = padded(q), padded(k)
        windows = q.shape[1] // 8
        q, k = q.reshape(q.shape[0], windows, -1, 4), k.reshape(k.shape[0], windows, -1, 4)
        k = torch.cat([k.roll(1, 1), k], 2)
        places = torch.arange(8)
        return (q @ k.mT).masked_fill(places[:, None] > places.repeat(2), -9.0)

    torch.compiler.reset()
    run = torch.compile(scores, backend="weft", options={"fallback": "error", "cache": False})
    for batch, n, m in ((2, 32, 32), (3, 37, 34), (2, 41, 48)):
        q, k = (torch.randn(batch, length, 4, dtype=torch.float64, requires_grad=True) for length in (n, m))
        torch.testing.assert_close(run(q, k), scores(q, k))
        found, wanted = (torch.autograd.grad(f(q, k).sin().sum(), (q, k)) for f in (run, scores))
        torch.testing.assert_close(found, wanted)


def test_a_remainder_of_a_number_that_may_be_negative() -> None:
    def turned(x: torch.Tensor, by: int) -> torch.Tensor:
        return torch.cat([x[by % 4 :], x[: by % 4]]) * (by % 4 + 1)

    torch.compiler.reset()
    run = torch.compile(turned, backend="weft", dynamic=True, options={"fallback": "error", "cache": False})
    x = torch.randn(6, 3)
    for by in (5, -3, -7, 11, 2, -2):
        torch.testing.assert_close(run(x, by), turned(x, by))


def test_quotients_and_extrema_of_numbers_that_may_be_negative() -> None:
    """They round down, and are compared, as Python's do; so do what shapes and elements are made of."""

    def centred(x: torch.Tensor, like: torch.Tensor, by: int, parts: int) -> tuple[torch.Tensor, ...]:
        if parts < 1:
            raise ValueError
        before = (like.shape[0] - x.shape[0]) // parts
        turn = by // 3
        padded = F.pad(x, (0, 0, before, like.shape[0] - x.shape[0] - before))
        return padded, torch.arange(x.shape[0]) + before, x * turn + max(turn, -1) * min(by, 2)

    torch.compiler.reset()
    run = torch.compile(centred, backend="weft", dynamic=True, options={"fallback": "error", "cache": False})
    for n, m, by, parts in ((6, 11, 7, 2), (11, 6, -7, 2), (8, 5, -1, 4), (5, 8, 3, 5), (7, 7, -9, 3)):
        x = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
        like = torch.randn(m, 3, dtype=torch.float64)
        found, wanted = run(x, like, by, parts), centred(x, like, by, parts)
        torch.testing.assert_close(found, wanted)
        gradients = (torch.autograd.grad(sum(y.double().sin().sum() for y in each), x) for each in (found, wanted))
        torch.testing.assert_close(*gradients)
