"""Integer arguments as places in a tensor: they may be negative, and be so in one call and not in the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from weft.frontends.torch.importer.sizes import integer_sources, read_symbols, size_of
from weft.ir.expr import evaluate, is_nonnegative, symbols_of


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


FUNCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "slice from": lambda x, n: x[n:] + 1,
    "slice to": lambda x, n: x[:n] * 2,
    "slice from the end": lambda x, n: x[-n:] * 2,
    "both parts": lambda x, n: torch.cat([x[:n], x[n:] * 2]),
    "select": lambda x, n: x[n] * 2,
    "narrow": lambda x, n: x.narrow(0, n, 2) * 2,
    "rows": lambda x, n: x.view(3, -1)[n:] * 2,
    "slice_scatter": lambda x, n: torch.slice_scatter(x, x.new_zeros(1), 0, n, n + 1),
    "select_scatter": lambda x, n: torch.select_scatter(x, x.new_zeros(()), 0, n),
    "pad": lambda x, n: F.pad(x * 3, (n, 1), value=2.0) * 2,
    "roll": lambda x, n: (x * 3).roll(n, 0),
    "tril": lambda x, n: (x.view(3, -1) + 1).tril(n),
    "number": lambda x, n: x * n + n**2,
    "fill what was cut": lambda x, n: F.pad(x[:n], (0, -n)) * 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_places_of_either_sign(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="weft", dynamic=True)
    for n, size in ((-2, 9), (-3, 12), (2, 9), (3, 12)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, n), function(x, n))


@pytest.mark.parametrize("name", ["slice from", "slice to", "slice from the end", "select", "pad", "number"])
def test_places_are_compiled(name: str) -> None:
    compiled = torch.compile(FUNCTIONS[name], backend="weft", dynamic=True, options={"strict": True})
    for n in (-2, 2):
        x = torch.randn(9)
        torch.testing.assert_close(compiled(x, n), FUNCTIONS[name](x, n))


def test_a_slice_that_starts_before_the_tensor() -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        return x[-8:] * 2

    compiled = torch.compile(last, backend="weft", dynamic=True)
    for size in (5, 6, 8, 11):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), last(x))


@pytest.mark.parametrize(
    ("hint", "asked", "values"),
    [(-3, None, (-4, 0, 7)), (-3, lambda n: n < 0, (-4, -1)), (3, lambda n: n >= 0, (0, 7))],
)
def test_symbols_are_never_negative(
    hint: int, asked: Callable[[torch.SymInt], torch.SymBool] | None, values: tuple[int, ...]
) -> None:
    """Whatever is known of the sign of an integer argument, it is written in symbols that are at least 0."""
    environment = ShapeEnv()
    source = ConstantSource("n")
    made = environment.create_unspecified_symbol(hint, source, DimDynamic.DYNAMIC)
    number: Any = environment.create_symintnode(made, hint=hint, source=source)
    assert asked is None or bool(asked(number))
    size = size_of(number)
    assert is_nonnegative(size) is (hint > 0)
    reader = read_symbols(integer_sources(0, number), set(symbols_of(size)))
    for value in values:
        symbols = reader([value])
        assert evaluate(size, symbols) == value
        assert all(each >= 0 for each in symbols.values())
