"""Random programs over the primitives: compiled for the CPU they give what NumPy gives, one program at a time.

So does their tile IR in the reference, after it has been printed and read back.

Both builders are driven by the same random choices. Integers and moved data agree bit for bit, floats closely.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.sampling import every
from weft.backends.reference.tile import run_kernel
from weft.frontends.triton.builders.builder import Builder, Handle
from weft.frontends.triton.builders.numpy_builder import NumpyBuilder
from weft.frontends.triton.builders.tile_builder import Argument
from weft.frontends.triton.builders.watched_memory import Memory
from weft.frontends.triton.runtime.compiled import CompiledKernel, build_kernel, compile_kernel
from weft.ir.types import DType, f32, i32
from weft.tile.collective_ops import row_major
from weft.tile.dialect import KernelOp
from weft.tile.text import parse_program

SIZE = 4096
PROGRAMS = 3
SHAPES = [(16,), (7,), (32,), (4, 8), (8, 4), (3, 5), (1, 16), (2, 3, 4), (16, 16)]


@dataclass(frozen=True)
class Tile:
    """A value of a program: what both builders know of it."""

    handle: Handle
    dtype: DType
    shape: tuple[int, ...]


class Program:
    """Makes random steps on a builder. The choices depend on the seed alone."""

    def __init__(self, b: Builder, seed: int, arguments: list[Handle]) -> None:
        self.b = b
        self.choose = random.Random(seed)
        self.floats, self.integers, self.result, self.changed, self.size = arguments
        self.values: list[Tile] = []
        self.written = 0

    def run(self, steps: int) -> None:
        self.values.append(self.fresh(i32))
        self.values.append(self.fresh(f32))
        for _ in range(steps):
            self.step(depth=0)
        for value in self.values[-6:]:
            self.write(value)

    # -- pieces ------------------------------------------------------------------------------------------------------

    def step(self, depth: int) -> None:
        kinds = ["map"] * 5 + ["view"] * 3 + ["load"] * 2 + ["reduce"] * 2
        kinds += ["compare", "scan", "fold", "take", "sort", "dot", "store", "histogram", "change", "change"]
        if depth < 2:
            kinds += ["loop", "branch", "while"]
        getattr(self, self.choose.choice(kinds))(depth)

    def pick(self, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Tile:
        fitting = [v for v in self.values if dtype in (None, v.dtype) and shape in (None, v.shape)]
        if fitting and self.choose.random() < 0.9:
            return self.choose.choice(fitting[-8:])
        return self.fresh(dtype or self.choose.choice([i32, f32]), shape)

    def fresh(self, dtype: DType, shape: tuple[int, ...] | None = None) -> Tile:
        shape = self.choose.choice(SHAPES) if shape is None else shape
        if self.choose.random() < 0.3:
            number = self.choose.randint(-4, 4)
            return Tile(self.b.constant(number, dtype, shape), dtype, shape)
        places, mask = self.places(shape), None
        source = self.floats if dtype == f32 else self.integers
        if self.choose.random() < 0.6:
            limit = self.b.constant(self.choose.randint(0, 40), i32, shape)
            mask = self.b.map("lt", [self.positions(shape), limit], i32)
        other = self.b.constant(3, dtype, shape) if mask is not None else None
        pointer = self.b.advance(self.spread(source, shape), places, i32, dtype)
        return Tile(self.b.load(pointer, mask, other, dtype), dtype, shape)

    def spread(self, handle: Handle, shape: tuple[int, ...]) -> Handle:
        return self.b.view(handle, shape, 0, (0,) * len(shape))

    def positions(self, shape: tuple[int, ...]) -> Handle:
        """0, 1, 2, ... row by row."""
        count = int(np.prod(shape, dtype=int))
        return self.b.view(self.b.arange(0, count), shape, 0, row_major(shape))

    def places(self, shape: tuple[int, ...]) -> Handle:
        """Where to read: side by side, spread out, backwards, or wrapped around."""
        b, count = self.b, int(np.prod(shape, dtype=int))
        places = self.positions(shape)
        program = self.spread(b.program_id(0), shape)
        places = b.map("add", [places, b.map("mul", [program, b.constant(count, i32, shape)], i32)], i32)
        match self.choose.randint(0, 3):
            case 0:
                places = b.map("mul", [places, b.constant(2, i32, shape)], i32)
            case 1:
                places = b.map("remainder", [places, b.constant(max(1, count - 3), i32, shape)], i32)
            case 2:
                places = b.map("sub", [b.constant(SIZE - 1, i32, shape), places], i32)
            case _:
                pass
        return places

    def keep(self, handle: Handle, dtype: DType, shape: tuple[int, ...]) -> None:
        self.values.append(Tile(handle, dtype, shape))

    # -- steps -------------------------------------------------------------------------------------------------------

    def map(self, depth: int) -> None:
        a = self.pick()
        c = self.pick(a.dtype, a.shape)
        bits = ["and", "or", "xor"] if a.dtype == i32 else []
        name = self.choose.choice(["add", "sub", "mul", "max", "min", *bits])
        result = self.b.map(name, [a.handle, c.handle], a.dtype)
        if a.dtype == f32:  # what grows without bounds is no longer comparable
            low, high = (self.b.constant(number, f32, a.shape) for number in (-100.0, 100.0))
            result = self.b.map("min", [self.b.map("max", [result, low], f32), high], f32)
        self.keep(result, a.dtype, a.shape)

    def compare(self, depth: int) -> None:
        a = self.pick()
        c, no = self.pick(a.dtype, a.shape), self.pick(a.dtype, a.shape)
        name = self.choose.choice(["lt", "le", "gt", "ge"])
        mask = self.b.map(name, [a.handle, c.handle], a.dtype)
        self.keep(self.b.map("select", [mask, a.handle, no.handle], a.dtype), a.dtype, a.shape)

    def view(self, depth: int) -> None:
        a = self.pick()
        strides = list(row_major(a.shape))
        axes = list(range(len(a.shape)))
        match self.choose.randint(0, 4):
            case 0:  # transposed
                self.choose.shuffle(axes)
                shape, steps, offset = tuple(a.shape[x] for x in axes), [strides[x] for x in axes], 0
            case 1:  # turned around
                axis = self.choose.choice(axes)
                shape, steps = a.shape, [-s if x == axis else s for x, s in enumerate(strides)]
                offset = strides[axis] * (a.shape[axis] - 1)
            case 2:  # flat
                shape, steps, offset = (int(np.prod(a.shape, dtype=int)),), [1], 0
            case 3 if len(a.shape) < 3:  # repeated
                place = self.choose.randint(0, len(a.shape))
                shape = (*a.shape[:place], 3, *a.shape[place:])
                steps, offset = [*strides[:place], 0, *strides[place:]], 0
            case _:  # cut
                axis = self.choose.choice(axes)
                offset = self.choose.randrange(a.shape[axis]) * strides[axis]
                shape = tuple(1 if x == axis else n for x, n in enumerate(a.shape))
                steps = strides
        if int(np.prod(shape, dtype=int)) <= 512:
            self.keep(self.b.view(a.handle, shape, offset, tuple(steps)), a.dtype, shape)

    def load(self, depth: int) -> None:
        self.values.append(self.fresh(self.choose.choice([i32, f32])))

    def reduce(self, depth: int) -> None:
        a = self.pick()
        axis = self.choose.randrange(len(a.shape))
        kind = self.choose.choice(["sum", "max", "min"])
        (result,) = self.b.reduce([a.handle], [a.dtype], axis, kind)
        shape = tuple(n for x, n in enumerate(a.shape) if x != axis)
        if not shape:
            result, shape = self.spread(result, (16,)), (16,)
        self.keep(result, a.dtype, shape)

    def combine(self, left: Any, right: Any) -> Any:
        return [self.b.map("max", [left[0], right[0]], i32), self.b.map("add", [left[1], right[1]], i32)]

    def fold(self, depth: int) -> None:
        a = self.pick(i32)
        c = self.pick(i32, a.shape)
        axis = self.choose.randrange(len(a.shape))
        results = self.b.reduce([a.handle, c.handle], [i32, i32], axis, self.combine)
        shape = tuple(n for x, n in enumerate(a.shape) if x != axis)
        for result in results:
            self.keep(result if shape else self.spread(result, (7,)), i32, shape or (7,))

    def scan(self, depth: int) -> None:
        a = self.pick(i32)
        c = self.pick(i32, a.shape)
        axis, reverse = self.choose.randrange(len(a.shape)), self.choose.random() < 0.5
        for result in self.b.scan([a.handle, c.handle], [i32, i32], axis, self.combine, reverse):
            self.keep(result, i32, a.shape)

    def take(self, depth: int) -> None:
        a = self.pick()
        axis = self.choose.randrange(len(a.shape))
        index = self.pick(i32, a.shape)
        inside = self.b.map("remainder", [index.handle, self.b.constant(a.shape[axis], i32, a.shape)], i32)
        self.keep(self.b.take(a.handle, inside, axis), a.dtype, a.shape)

    def sort(self, depth: int) -> None:
        a = self.pick()
        self.keep(self.b.sort(a.handle, a.dtype, self.choose.random() < 0.5), a.dtype, a.shape)

    def dot(self, depth: int) -> None:
        a = self.pick(f32, (16, 16))
        c = self.pick(f32, (16, 16))
        scaled = self.b.map("mul", [a.handle, self.b.constant(0.01, f32, (16, 16))], f32)
        added = self.pick(f32, (16, 16)).handle if self.choose.random() < 0.5 else None
        self.keep(self.b.dot(scaled, c.handle, added, f32, f32), f32, (16, 16))

    def histogram(self, depth: int) -> None:
        a = self.pick(i32, self.choose.choice([(16,), (32,), (7,)]))
        self.keep(self.b.histogram(a.handle, i32, 16, None), i32, (16,))

    def store(self, depth: int) -> None:
        if depth == 0:
            self.write(self.pick())

    def change(self, depth: int) -> None:
        """Write to memory that is read before and after, at the same places, shifted or turned around."""
        if depth:
            return
        b, value = self.b, self.pick(f32)
        count = int(np.prod(value.shape, dtype=int))
        program = b.map("mul", [b.program_id(0), b.constant(1024, i32, ())], i32)
        start = b.map("add", [self.spread(program, value.shape), self.positions(value.shape)], i32)
        turned = b.map("sub", [b.constant(count - 1, i32, value.shape), self.positions(value.shape)], i32)
        turned = b.map("add", [self.spread(program, value.shape), turned], i32)
        ahead = b.map("add", [start, b.constant(1, i32, value.shape)], i32)
        memory = self.spread(self.changed, value.shape)

        def pointers() -> Handle:
            return b.advance(memory, self.choose.choice([start, turned, ahead]), i32, f32)

        before = b.load(pointers(), None, None, f32)
        kept = [b.load(pointers(), None, None, f32)] if self.choose.random() < 0.5 else []
        b.store(pointers(), b.map("add", [before, value.handle], f32), None, f32)
        if self.choose.random() < 0.5:
            b.store(pointers(), value.handle, None, f32)
        for handle in [before, b.load(pointers(), None, None, f32), *kept]:
            low, high = (b.constant(number, f32, value.shape) for number in (-100.0, 100.0))
            self.keep(b.map("min", [b.map("max", [handle, low], f32), high], f32), f32, value.shape)

    def write(self, value: Tile) -> None:
        """To a place of its own, for each program; floats as what they are rounded to."""
        b, count = self.b, int(np.prod(value.shape, dtype=int))
        room = SIZE // PROGRAMS
        if self.written + count > room:
            return
        start = self.spread(b.map("mul", [b.program_id(0), b.constant(room, i32, ())], i32), value.shape)
        places = b.map("add", [start, self.positions(value.shape)], i32)
        places = b.map("add", [places, b.constant(self.written, i32, value.shape)], i32)
        self.written += count
        if self.choose.random() < 0.3:  # costs more than it looks, and is the same for all writes of a shape
            zero = b.map("remainder", [self.positions(value.shape), b.constant(1, i32, value.shape)], i32)
            places = b.map("add", [places, zero], i32)
        mask = None
        if self.choose.random() < 0.4:
            limit = b.constant(self.choose.randint(0, count), i32, value.shape)
            mask = b.map("lt", [self.positions(value.shape), limit], i32)
        wide = b.cast(value.handle, value.dtype, f32) if value.dtype != f32 else value.handle
        b.store(b.advance(self.spread(self.result, value.shape), places, i32, f32), wide, mask, f32)

    def inside(self, values: list[Tile], handles: list[Handle], steps: int, depth: int) -> list[Handle]:
        """Some steps in a block of its own, whose values are not known outside; gives as many values as came in."""
        outer = self.values
        self.values = [Tile(h, v.dtype, v.shape) for h, v in zip(handles, values, strict=True)]
        for _ in range(steps):
            self.step(depth + 1)
        results = [self.pick(v.dtype, v.shape).handle for v in values]
        self.values = outer
        return results

    def loop(self, depth: int) -> None:
        carried = [self.pick() for _ in range(self.choose.randint(1, 2))]
        turns = self.choose.randint(0, 3)
        number = self.choose.getrandbits(32)

        def body(index: Handle, handles: list[Handle]) -> list[Handle]:
            self.choose, outer = random.Random(number), self.choose
            scalar = self.spread(index, (7,))
            values = [*carried, Tile(scalar, i32, (7,))]
            results = self.inside(values, [*handles, scalar], 3, depth)[: len(carried)]
            self.choose = outer
            return results

        bounds = [self.b.constant(n, i32, ()) for n in (0, turns, 1)]
        results = self.b.for_loop(*bounds, i32, [v.handle for v in carried], body)
        for value, result in zip(carried, results, strict=True):
            self.keep(result, value.dtype, value.shape)

    def branch(self, depth: int) -> None:
        given = [self.pick() for _ in range(2)]
        numbers = [self.choose.getrandbits(32) for _ in range(2)]
        condition = self.b.map("lt", [self.b.program_id(0), self.b.constant(self.choose.randint(0, 3), i32, ())], i32)

        def block(number: int) -> Any:
            def make() -> list[Handle]:
                self.choose, outer = random.Random(number), self.choose
                results = self.inside(given, [v.handle for v in given], 3, depth)
                self.choose = outer
                return results

            return make

        for value, result in zip(given, self.b.branch(condition, *map(block, numbers)), strict=True):
            self.keep(result, value.dtype, value.shape)

    def while_(self, depth: int) -> None:
        value = self.pick(i32)
        turns = self.choose.randint(0, 3)

        def condition(handles: list[Handle]) -> Handle:
            return self.b.map("lt", [handles[0], self.b.constant(turns, i32, ())], i32)

        def body(handles: list[Handle]) -> list[Handle]:
            more = self.b.map("add", [handles[0], self.b.constant(1, i32, ())], i32)
            grown = self.b.map("add", [handles[1], self.spread(more, value.shape)], i32)
            return [more, grown]

        start = self.b.constant(0, i32, ())
        _, result = self.b.while_loop([start, value.handle], condition, body)
        self.keep(result, i32, value.shape)


setattr(Program, "while", Program.while_)


@pytest.mark.parametrize("chunk", every(5, range(20)))
def test_compiled_as_interpreted(chunk: int) -> None:
    for seed in range(25 * chunk, 25 * (chunk + 1)):
        check(seed)


@pytest.mark.parametrize("seed", range(500, 530))
def test_the_tile_program_runs_in_numpy_after_a_round_trip(seed: int) -> None:
    floats, integers, expected = interpreted(seed, 12)
    kernel, _ = build_kernel(lambda b, handles: Program(b, seed, handles).run(12), ARGUMENTS, "random")
    module = parse_program(str(kernel))
    (read,) = [op for op in module.ops if isinstance(op, KernelOp)]
    result = np.full(SIZE, 7, np.float32)
    buffers = [floats, integers, result, np.zeros(SIZE, np.float32), np.zeros(1, np.int64)]
    run_kernel(read, buffers, [SIZE, 1, 1, PROGRAMS])
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4)


ARGUMENTS = [*(Argument(dtype, True, group) for group, dtype in enumerate((f32, i32, f32, f32))), Argument(i32)]


def interpreted(seed: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random inputs, and what the program makes of them in NumPy."""
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal(3 * SIZE).astype(np.float32)
    integers = rng.integers(-20, 20, 3 * SIZE).astype(np.int32)
    expected = np.full(SIZE, 7, np.float32)
    memory = Memory()
    memory.grid = (PROGRAMS, 1, 1)
    machine = NumpyBuilder(memory)
    arrays = (floats, integers, expected, np.zeros(SIZE, np.float32))
    pointers = [memory.add(name, each) for name, each in zip("firc", arrays, strict=True)]
    for number in range(PROGRAMS):
        machine.enter_program(number, 0, 0)
        Program(machine, seed, [*pointers, np.asarray(SIZE, np.int32)]).run(steps)
    return floats, integers, expected


def check(seed: int, steps: int = 12) -> None:
    floats, integers, expected = interpreted(seed, steps)
    result = np.full(SIZE, 7, np.float32)
    code = compile_kernel(lambda b, handles: Program(b, seed, handles).run(steps), ARGUMENTS, f"random{seed}")
    changed = np.zeros(SIZE, np.float32)
    words = [each.ctypes.data for each in (floats, integers, result, changed)]
    CompiledKernel(code).launch((PROGRAMS, 1, 1), [*words, SIZE])
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}")
