"""Mistakes in data that a model's operators do not allow: indices that are out of range, lengths beyond what is there.

A converter states the places; those that are known are looked at as the model is imported. Of the others a stage makes
one number, a result of its own: 0, or which of its checks has found something, and a call looks at it.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from weft.frontends.onnx.call import Call, Mistake
from weft.frontends.onnx.values import Known
from weft.ir.expr import Size
from weft.ir.types import i64
from weft.ops.graph import GraphBuilder
from weft.ops.rules import size_value


@dataclass(frozen=True)
class Verdict:
    """Which result of a stage's function tells what is wrong, and what its numbers mean, counted from 1."""

    place: int
    mistakes: tuple[Mistake, ...]

    def raise_if(self, number: int) -> None:
        """Raise what a number other than 0 stands for."""
        if number:
            raise self.mistakes[number - 1].error()


def check_places(c: Call, place: int, sizes: Sequence[int], dims: Sequence[int]) -> None:
    """The indices in an input must be in range: of one dimension, or each column of several of one of them."""
    value, message = c.input(place), f"{c.node}: an index is out of range for dimension"
    limits = np.array(sizes if len(sizes) != 1 else sizes[0], np.int64)
    named = Mistake(f"{message} {', '.join(map(str, dims))}, of size {', '.join(map(str, sizes))}", is_place=True)
    if isinstance(value, Known):
        if ((value.array < -limits) | (value.array >= limits)).any():
            raise named.error()
        return
    b, index = c.b, c.x(place)
    if not all(c.shape(place)):
        return
    index = index if b.tensor(index).dtype == i64 else b.cast(index, dtype=i64)
    columns = [index]
    if len(sizes) > 1:
        shape = c.shape(place)
        front = (0,) * (len(shape) - 1)
        ones = (1,) * len(shape)
        columns = [b.slice(index, starts=(*front, n), shape=(*shape[:-1], 1), steps=ones) for n in range(len(sizes))]
    for column, size in zip(columns, sizes, strict=True):
        wrong = b.logical_or(b.lt(column, b.full_like(column, -size)), b.ge(column, b.full_like(column, size)))
        c.scope.checks.append((b.any(wrong, dims=tuple(range(b.tensor(wrong).rank)), keep=False), named))


def check_lengths(c: Call, place: int, longest: Size) -> None:
    """The lengths of sequences in an input must be such as there is room for."""
    value, room = c.input(place), f" of {longest}" if isinstance(longest, int) else ""
    named = Mistake(f"{c.node}: a sequence's length is negative, or more than the room for it{room}")
    if isinstance(value, Known) and isinstance(longest, int):
        if ((value.array < 0) | (value.array > longest)).any():
            raise named.error()
        return
    b, lengths = c.b, c.x(place)
    lengths = lengths if b.tensor(lengths).dtype == i64 else b.cast(lengths, dtype=i64)
    wrong = b.logical_or(b.lt(lengths, size_value(b, 0, i64)), b.gt(lengths, size_value(b, longest, i64)))
    c.scope.checks.append((b.any(wrong, dims=(0,), keep=False), named))


def combined(
    b: GraphBuilder, block: Block, checks: Sequence[tuple[SSAValue, Mistake]]
) -> tuple[SSAValue, Verdict] | None:
    """The number of the last check that has found something, and 0 if none has; checks of other blocks are not made."""
    stated = [
        (found, wrong) for found, wrong in checks if isinstance(found.owner, Operation) and found.owner.parent is block
    ]
    code: SSAValue | None = None
    for number, (found, _) in enumerate(stated, 1):
        these = b.full(value=number, shape=(), dtype=i64), b.full(value=0, shape=(), dtype=i64)
        this = b.where(found, *these)
        code = this if code is None else b.maximum(code, this)
    return None if code is None else (code, Verdict(-1, tuple(wrong for _, wrong in stated)))
