"""What random Triton kernels do beside arithmetic: scans, reductions by functions of their own, sorts, gathers, loops.

Each form is lines of a kernel for a tile of 1 dimension, the names that it makes, and what is known of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

PRELUDE = """@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def first_largest(a, i, b, j):
    take = (a > b) | ((a == b) & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)


@triton.jit(noinline=True)
def chosen(a, b, UPPER: tl.constexpr):
    if UPPER:
        if UPPER > 1:
            return tl.maximum(a, b)
        return tl.where(a > b, a, b)
    return tl.minimum(a, b)
"""
"""Functions that kernels call."""


@dataclass(frozen=True)
class Form:
    """Lines, and the tiles that they make: names, types and shapes."""

    lines: tuple[str, ...]
    made: tuple[tuple[str, str, tuple[int, ...]], ...]


def draw_form(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    """Lines about an exact tile `x` of a power of two of floats or integers; what they make begins with `name`."""
    return rng.choice(_FORMS if type_ == "i32" else _FORMS[:-1])(rng, name, x, type_, size)


def _one(line: str, name: str, type_: str, *shape: int) -> Form:
    return Form((f"{name} = {line}",), ((name, type_, shape),))


def _sorted(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    return _one(f"tl.sort({x}, descending={rng.random() < 0.5})", name, type_, size)


def _scanned(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    return _one(f"tl.associative_scan({x}, 0, larger, reverse={rng.random() < 0.5})", name, type_, size)


def _gathered(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    index = f"(tl.arange(0, {size}) * {rng.choice((3, 7, 31))} + {rng.randrange(size)}) % {size}"
    return _one(f"tl.gather({x}, {index}, 0)", name, type_, size)


def _chosen(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    return _one(f"chosen({x}, {x} * 0 + {rng.randrange(3)}, {rng.randrange(3)})", name, type_, size)


def _pair(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    how = rng.choice(("reduce", "associative_scan"))
    line = f"{name}, {name}_i = tl.{how}(({x}, tl.arange(0, {size})), 0, first_largest)"
    shape = () if how == "reduce" else (size,)
    return Form((line,), ((name, type_, shape), (f"{name}_i", "i32", shape)))


def _waits(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    bound = rng.choice(("pid + 2", "n0 % 4", "3"))
    lines = (
        f"{name} = {x}",
        f"{name}_c = 0",
        f"while {name}_c < {bound}:",
        f"    {name} = tl.maximum({name}, {x} + {name}_c)",
        f"    {name}_c += {rng.choice((1, 2))}",
    )
    return Form(lines, ((name, type_, (size,)),))


def _counted(rng: random.Random, name: str, x: str, type_: str, size: int) -> Form:
    bins = rng.choice((8, 16, 32))
    mask = f", mask=tl.arange(0, {size}) < {rng.randint(1, size)}" if rng.random() < 0.5 else ""
    return _one(f"tl.histogram({x} & {bins - 1}, {bins}{mask})", name, "i32", bins)


_FORMS: tuple[Callable[[random.Random, str, str, str, int], Form], ...] = (
    _sorted, _scanned, _gathered, _chosen, _pair, _waits, _counted,
)  # fmt: skip
"""The last one takes integers alone."""
