"""Sizes that are computed in floats from other sizes are compiled, and computed at each call as Python does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from weft.errors import ParseError
from weft.frontends.torch.importer.float_sizes import FloatFormula
from weft.ir.expr import symbol

Function = Callable[[torch.Tensor], torch.Tensor]
S = symbol("s0")

PROGRAMS: dict[str, Function] = {
    "quotient": lambda x: x[: int(x.shape[0] / 3)] * 2,
    "quotient that is one": lambda x: x[: int(x.shape[0] / 8)] * 2,
    "ceiling": lambda x: x[: math.ceil(x.shape[0] / 3)] * 2,
    "rounded": lambda x: x[: round(x.shape[0] * 0.3)] * 2,
    "root": lambda x: x[: int(x.shape[0] ** 0.5)] * 2,
    "square root": lambda x: x[: int(math.sqrt(x.shape[0]))] * 2,
    "range": lambda x: torch.arange(0, x.shape[0] / 2, 0.5) + x.sum(),
    "number": lambda x: x * abs(x.shape[0] - x.shape[1] / 2) + math.trunc(x.shape[0] / 3),
    "condition": lambda x: x * (x.shape[0] > 10) + (x.shape[1] == 9),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_with_a_size_from_floats_is_compiled(name: str) -> None:
    function = PROGRAMS[name]
    torch.compiler.reset()
    options = {"fallback": "error", "cache": False}
    compiled = torch.compile(function, backend="weft", dynamic=True, options=options)
    for shape in ((9, 7), (13, 9), (16, 11)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))


def test_floats_and_conditions_on_sizes_are_results(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))

    def function(x: torch.Tensor) -> tuple[object, ...]:
        rows, columns = x.shape
        conditions = rows != columns, rows > 3 and columns < 9, not (rows == 9 or columns > 4)
        return x * 2, rows / 7, *conditions, rows**0.5 + 1, rows * 2

    for _ in ("compiled", "stored"):
        torch.compiler.reset()
        compiled = torch.compile(function, backend="weft", dynamic=True, options={"fallback": "error"})
        for shape in ((9, 9), (13, 5), (2, 3)):
            x = torch.randn(shape, requires_grad=True)
            (result, *found), (_, *expected) = compiled(x), function(x)
            assert found == expected and list(map(type, found)) == list(map(type, expected))
            (gradient,) = torch.autograd.grad(result.sum(), x)
            torch.testing.assert_close(gradient, torch.full(shape, 2.0))


def test_a_formula_is_computed_in_floats() -> None:
    formula = FloatFormula(("@0", "ToFloat", 0.7, "Mul", "TruncToInt"), (S + 1,))
    for size in (0, 9, 19, 29):
        assert formula.value({"s0": size}) == int(0.7 * (size + 1))
    assert formula.symbols == {"s0"}
    formula.check()


@pytest.mark.parametrize("words", [("Mul",), ("@1",), ("@0", "@0"), ("@0", "system"), ("@x",), ()])
def test_words_that_are_no_formula_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ParseError, match="stored formula"):
        FloatFormula(words, (S,)).check()


def test_a_stored_graph_computes_its_sizes_too(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))

    def function(x: torch.Tensor) -> torch.Tensor:
        side = int(x.shape[0] ** 0.5)
        return x[: side * side].view(side, side, -1).mean(1)

    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(function, backend="weft", dynamic=True, options={"fallback": "error"})
        for rows in (17, 30):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), function(x))
