"""What the analysis says of numbers along axes is true of the numbers, and it sees what kernels usually do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from weft.frontends.triton.builders.numpy_builder import NumpyBuilder
from weft.frontends.triton.builders.tile_builder import Argument, TileBuilder
from weft.frontends.triton.runtime.compiled import build_kernel
from weft.ir.types import boolean, f32, i32
from weft.tile import dialect as tile
from weft.tile.axis_facts import AxisFacts, neighbours_of
from weft.tile.facts import Facts

ARGUMENTS = [Argument(f32, True, 0, 16), Argument(i32, divisor=16), Argument(i32)]
NUMBERS = (48, 7)
SHAPES = [(16,), (32,), (8, 16), (16, 4), (4, 2, 8), (24,)]


class Expression:
    """Random integer arithmetic on a builder; the choices depend on the seed alone."""

    def __init__(self, b: Any, seed: int, numbers: list[Any]) -> None:
        self.b, self.choose, self.numbers = b, random.Random(seed), numbers
        self.shape = self.choose.choice(SHAPES)
        self.values: list[Any] = []

    def run(self, steps: int) -> list[Any]:
        for _ in range(steps):
            self.values.append(self.leaf() if len(self.values) < 2 or self.choose.random() < 0.25 else self.node())
        return self.values

    def leaf(self) -> Any:
        b, shape = self.b, self.shape
        match self.choose.randint(0, 3):
            case 0:
                return b.constant(self.choose.choice([0, 1, 2, 3, 4, 8, 16, 64, -8]), i32, shape)
            case 1:
                number = self.choose.choice(self.numbers)
                return b.view(number, shape, 0, (0,) * len(shape))
            case 2:
                program = b.program_id(0)
                return b.view(program, shape, 0, (0,) * len(shape))
            case _:
                axis = self.choose.randrange(len(shape))
                start = self.choose.choice([0, 0, 4, 3])
                line = b.arange(start, start + shape[axis])
                return b.view(line, shape, 0, tuple(int(a == axis) for a in range(len(shape))))

    def node(self) -> Any:
        b = self.b
        x, y = self.choose.choice(self.values), self.choose.choice(self.values)
        name = self.choose.choice(
            ["add", "add", "mul", "sub", "floordiv", "truncdiv", "remainder", "fmod", "min", "max"]
        )
        name = self.choose.choice([name, name, name, "select", "shl", "shr"])
        if name in ("floordiv", "truncdiv", "remainder", "fmod"):
            y = b.constant(self.choose.choice([1, 2, 4, 8, 16, 3, 12]), i32, self.shape)
        if name in ("shl", "shr"):
            y = b.constant(self.choose.randint(0, 4), i32, self.shape)
        if name == "select":
            test = b.map(self.choose.choice(["lt", "le", "gt", "ge"]), [x, y], i32)
            return b.map("select", [test, x, self.choose.choice(self.values)], i32)
        return b.map(name, [x, y], i32)


def conditions(b: Any, seed: int, values: list[Any]) -> list[Any]:
    choose = random.Random(seed)
    pairs = [(choose.choice(values), choose.choice(values)) for _ in range(4)]
    return [b.map(choose.choice(["lt", "le", "gt", "ge", "eq"]), list(pair), i32) for pair in pairs]


def check(facts: Facts, values: np.ndarray) -> None:
    """Every fact holds of the numbers."""
    if not values.shape:
        values = values.reshape(1)
    if facts.natural:
        assert (values >= 0).all()
    if facts.constant is not None:
        assert (values == facts.constant).all()
    for axis, size in enumerate(values.shape):
        lines = np.moveaxis(values, axis, -1).astype(np.int64)
        for length, step in ((facts.contiguity[axis], 1), (facts.constancy[axis], 0)):
            assert size % length == 0
            runs = lines.reshape(*lines.shape[:-1], size // length, length)
            assert (runs == runs[..., :1] + step * np.arange(length)).all(), (facts, axis, step)
            if step:
                assert (runs[..., 0] % facts.divisibility[axis] == 0).all(), (facts, axis, values)


@pytest.mark.parametrize("chunk", range(10))
def test_facts_are_true(chunk: int) -> None:
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        made: list[Any] = []

        def build(b: TileBuilder, handles: list[Any], seed: int = seed, made: list[Any] = made) -> None:
            values = Expression(b, seed, handles[1:]).run(9)
            made.extend([*values, *conditions(b, seed, values)])

        kernel, _ = build_kernel(build, ARGUMENTS, "numbers")
        facts = AxisFacts(kernel)
        for program in (0, 1, 5):
            machine = NumpyBuilder()
            machine.memory.grid = (8, 1, 1)
            machine.enter_program(program, 0, 0)
            expected = Expression(machine, seed, [np.asarray(n, np.int32) for n in NUMBERS]).run(9)
            expected = [*expected, *conditions(machine, seed, expected)]
            for handle, array in zip(made, expected, strict=True):
                if tile.tile_type(handle).dtype in (i32, boolean):
                    check(facts.of(handle), np.broadcast_to(array, tile.tile_type(handle).sizes))


def access(build: Any, arguments: list[Argument]) -> Any:
    found: list[Any] = []

    def make(b: TileBuilder, handles: list[Any]) -> None:
        found.append(build(b, handles))

    kernel, _ = build_kernel(make, arguments, "access")
    facts = AxisFacts(kernel)
    pointer, mask = found[0]
    return neighbours_of(facts, pointer.base, pointer.offsets, mask, 16)


def block(b: TileBuilder, handles: list[Any], size: int = 64) -> tuple[Any, Any]:
    """`start = program * size`; the elements from there on that lie before n."""
    pointer, n = handles
    start = b.map("mul", [b.program_id(0), b.constant(size, i32, ())], i32)
    offsets = b.map("add", [b.view(start, (size,), 0, (0,)), b.arange(0, size)], i32)
    mask = b.map("lt", [offsets, b.view(n, (size,), 0, (0,))], i32)
    return b.advance(b.view(pointer, (size,), 0, (0,)), offsets, i32, f32), mask


@pytest.mark.parametrize(("aligned", "divisor", "width"), [(16, 16, 4), (16, 1, 1), (1, 16, 1), (16, 2, 2)], ids=str)
def test_a_block_is_read_in_vectors_where_memory_and_size_are_multiples(aligned: int, divisor: int, width: int) -> None:
    found = access(block, [Argument(f32, True, 0, aligned), Argument(i32, divisor=divisor)])
    assert (found.axis, found.widths) == (0, (width,))


def test_a_mask_of_one_place_says_the_same_of_all_along_its_axis() -> None:
    def rows(b: TileBuilder, handles: list[Any]) -> tuple[Any, Any]:
        pointer, n = handles
        row, column = b.view(b.arange(0, 4), (4, 1), 0, (1, 0)), b.view(b.arange(0, 64), (1, 64), 0, (0, 1))
        start = b.map("mul", [row, b.constant(64, i32, (4, 1))], i32)
        offsets = b.map("add", [b.view(start, (4, 64), 0, (1, 0)), b.view(column, (4, 64), 0, (0, 1))], i32)
        mask = b.map("lt", [row, b.view(n, (4, 1), 0, (0, 0))], i32)
        return b.advance(b.view(pointer, (4, 64), 0, (0, 0)), offsets, i32, f32), mask

    found = access(rows, [Argument(f32, True, 0, 16), Argument(i32)])
    assert (found.axis, found.widths) == (1, (1, 4))


def test_what_the_author_knows_counts() -> None:
    def build(b: TileBuilder, handles: list[Any]) -> tuple[Any, Any]:
        b.hint(handles[1], "multiple_of", [16])
        return block(b, handles)

    assert access(build, [Argument(f32, True, 0, 16), Argument(i32)]).widths == (4,)


def test_an_assumed_remainder_counts() -> None:
    def build(b: TileBuilder, handles: list[Any]) -> tuple[Any, Any]:
        rest = b.map("fmod", [handles[1], b.constant(8, i32, ())], i32)
        b.assume(b.map("eq", [rest, b.constant(0, i32, ())], i32))
        return block(b, handles)

    assert access(build, [Argument(f32, True, 0, 16), Argument(i32)]).widths == (4,)


def test_rows_of_a_matrix_lie_side_by_side_along_the_last_axis() -> None:
    def build(b: TileBuilder, handles: list[Any]) -> tuple[Any, Any]:
        pointer, stride = handles
        shape = (8, 32)
        rows = b.map("mul", [b.view(b.arange(0, 8), shape, 0, (1, 0)), b.view(stride, shape, 0, (0, 0))], i32)
        offsets = b.map("add", [rows, b.view(b.arange(0, 32), shape, 0, (0, 1))], i32)
        return b.advance(b.view(pointer, shape, 0, (0, 0)), offsets, i32, f32), None

    found = access(build, [Argument(f32, True, 0, 16), Argument(i32, divisor=16)])
    assert (found.axis, found.widths) == (1, (1, 4))
