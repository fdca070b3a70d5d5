"""Integer tiles as affine functions of their positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdsl.ir import SSAValue

from weft.frontends.triton.builders.tile_builder import Argument, TileBuilder
from weft.frontends.triton.runtime.compiled import build_kernel
from weft.ir.expr import evaluate
from weft.ir.types import boolean, i32
from weft.tile.affine import Affine, Affines

ARGUMENTS = [Argument(i32), Argument(i32)]
VALUES = (7, 1000)


def built(make: Callable[[TileBuilder, Any, Any], Any]) -> SSAValue:
    """What `make` makes of two scalars."""
    found: list[Any] = []
    kept: list[Any] = []

    def build(b: TileBuilder, handles: list[Any]) -> None:
        found.append(make(b, *handles))
        kept.append(b)

    kept.append(build_kernel(build, ARGUMENTS, "forms")[0])
    found[0].keep = kept
    return found[0]


def numbers(affines: Affines, form: Affine) -> tuple[int, ...]:
    """The start and the steps for known arguments."""
    known = {name: VALUES[value.index] for name, value in affines.symbols.items()}  # type: ignore[attr-defined]
    return tuple(evaluate(size, known) for size in (form.start, *form.steps))


def spread(b: TileBuilder, value: Any, shape: tuple[int, ...]) -> Any:
    return b.view(value, shape, 0, (0,) * len(shape))


def matrix(b: TileBuilder, rows: Any, columns: Any) -> Any:
    """Rows down, plus columns across."""
    down, across = b.view(rows, (8, 4), 0, (1, 0)), b.view(columns, (8, 4), 0, (0, 1))
    return b.map("add", [down, across], i32)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda b, x, y: b.arange(3, 11), (3, 1)),
        (lambda b, x, y: b.map("mul", [b.arange(0, 8), spread(b, y, (8,))], i32), (0, 1000)),
        (lambda b, x, y: b.map("sub", [spread(b, y, (8,)), b.arange(0, 8)], i32), (1000, -1)),
        (lambda b, x, y: b.map("shl", [b.arange(0, 8), b.constant(3, i32, (8,))], i32), (0, 8)),
        (lambda b, x, y: b.map("add", [spread(b, b.map("mul", [x, y], i32), (8,)), b.arange(0, 8)], i32), (7000, 1)),
        (lambda b, x, y: matrix(b, b.map("mul", [b.arange(0, 8), spread(b, x, (8,))], i32), b.arange(0, 4)), (0, 7, 1)),
        (lambda b, x, y: b.view(matrix(b, b.arange(0, 8), b.arange(5, 9)), (4, 8), 0, (1, 4)), (5, 1, 1)),
    ],
)
def test_forms(make: Callable[[TileBuilder, Any, Any], Any], expected: tuple[int, ...]) -> None:
    affines = Affines()
    form = affines.of(built(make))
    assert form is not None and not form.wraps and numbers(affines, form) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x, y: b.map("mul", [b.arange(0, 8), b.arange(0, 8)], i32),
        lambda b, x, y: b.map("floordiv", [b.arange(0, 8), spread(b, x, (8,))], i32),
        lambda b, x, y: b.map("min", [b.arange(0, 8), spread(b, x, (8,))], i32),
        lambda b, x, y: b.view(b.arange(0, 8), (4, 2), 0, (2, 1)),
    ],
)
def test_what_has_no_form(make: Callable[[TileBuilder, Any, Any], Any]) -> None:
    assert Affines().of(built(make)) is None


def test_scalars_that_are_computed_alike_are_the_same() -> None:
    def make(b: TileBuilder, x: Any, y: Any) -> Any:
        one = b.map("floordiv", [y, b.map("add", [x, b.constant(1, i32, ())], i32)], i32)
        two = b.map("floordiv", [y, b.map("add", [b.constant(1, i32, ()), x], i32)], i32)
        return b.map("sub", [one, two], i32)

    form = Affines().of(built(make))
    assert form is not None and form.start == 0


@pytest.mark.parametrize("how", ["remainder", "where"])
def test_places_that_wrap_around(how: str) -> None:
    def make(b: TileBuilder, x: Any, y: Any) -> Any:
        rows, end = b.map("add", [spread(b, x, (8,)), b.arange(0, 8)], i32), spread(b, y, (8,))
        if how == "remainder":
            return b.map("fmod", [rows, end], i32)
        inside = b.map("lt", [rows, end], i32)
        return b.map("select", [inside, rows, b.constant(0, i32, (8,))], i32)

    affines = Affines()
    form = affines.of(built(make))
    assert form is not None and numbers(affines, form) == (7, 1)
    wrap = form.wraps[0]
    assert numbers(affines, Affine(wrap.limit, ())) == (993,)
    assert form.plus(form) is None


def test_conditions() -> None:
    def make(b: TileBuilder, x: Any, y: Any) -> Any:
        rows, end = b.map("add", [spread(b, x, (8,)), b.arange(0, 8)], i32), spread(b, y, (8,))
        first, second = (b.map(how, [rows, end], i32) for how in ("lt", "ge"))
        return b.view(b.map("and", [first, second], boolean), (8, 4), 0, (1, 0))

    affines = Affines()
    found = affines.conditions(built(make))
    assert found is not None
    # y - 1 - (x + i) is at least 0, and so is x + i - y.
    assert [numbers(affines, condition.number) for condition in found] == [(992, -1, 0), (-993, 1, 0)]
