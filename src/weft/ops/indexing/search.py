"""Searching sorted sequences by halving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, product
from weft.ir.types import Tensor, i64
from weft.ops.base import Movement, op, same_dtype
from weft.ops.body import Body, Operand, Value
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.indexing.index import check_index, wrapped, wrapped_reference
from weft.ops.numerics import NARROW
from weft.ops.rules import Values, all_batched
from weft.ops.samples import Input, Sample

_MOST_HALVINGS = 40
"""Of a sequence whose length is not known: more elements than that no memory holds."""


_SAMPLES = [
    Sample(
        (Input(line), Input(values), *(Input(line, 0, line[-1], i64) for _ in range(ordered))),
        {"right": right},
        NUMBERS,
    )
    for line, values, ordered, right in (
        ((7,), (5,), 0, False),
        ((6,), (2, 3), 0, True),
        ((1,), (), 0, False),
        ((0,), (3,), 0, True),
        ((2, 5), (2, 4), 1, False),
    )
]


@op("searchsorted", samples=_SAMPLES)
class SearchSorted(Movement):
    """Where each value would be inserted into a sequence that ascends along its last dimension.

    A sequence of one dimension serves values of any shape; of several, all but the last are those of the values. The
    place is in front of elements that are equal, or, if `right`, behind them; a NaN is inserted at the end. An optional
    third operand says where the elements stand: the n-th is `sequence[..., order[..., n]]`. A sequence that does not
    ascend is halved like any other.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        line, values, *order = tensors
        same_dtype("searchsorted", (line, values))
        check_index("searchsorted", *order)
        if not line.rank or (line.rank > 1 and (line.rank != values.rank or line.shape[:-1] != values.shape[:-1])):
            raise ShapeError(f"searchsorted: no sequence of {line} belongs to each value of {values}")
        if any(each.shape != line.shape for each in order):
            raise ShapeError(f"searchsorted: {line} and its order {order[0]} differ in shape")
        return Tensor(i64, values.shape)

    @staticmethod
    def reference(line: np.ndarray, values: np.ndarray, *order: np.ndarray, right: bool) -> np.ndarray:
        wide, sought = (each.astype(np.float32) if each.dtype in NARROW else each for each in (line, values))
        ordered = np.take_along_axis(wide, wrapped_reference(order[0], line.shape[-1]), -1) if order else wide
        start, end = np.zeros(values.shape, np.int64), np.full(values.shape, line.shape[-1], np.int64)
        for _ in range(line.shape[-1].bit_length()):
            middle = (start + end) // 2
            inside = np.minimum(middle, line.shape[-1] - 1)
            probe = ordered[inside] if line.ndim == 1 else np.take_along_axis(ordered, inside, -1)
            before = ~(probe > sought if right else probe >= sought) & (start < end)
            start, end = np.where(before, middle + 1, start), np.where(before, end, middle)
        return start

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], right: bool) -> SSAValue:
        line, values, *order = all_batched(b, operands, batched)
        shape = b.tensor(values).shape
        if b.tensor(line).rank == 2:  # a sequence for each example, and its values of any shape
            values = b.reshape(values, shape=(shape[0], product(shape[1:])))
        return b.reshape(b.searchsorted(line, values, *order, right=right), shape=shape)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], line: Operand, values: Operand, *order: Operand, right: bool) -> Value:
        size = line.tensor.shape[-1]
        sought = body.at(values, index)
        lead = list(index[:-1]) if line.tensor.rank > 1 else []
        one = body.constant(1, i64)
        start, end = body.constant(0, i64), body.position(size, i64)
        last = body.math("max", body.math("sub", end, one), body.constant(0, i64))
        for _ in range(size.bit_length() if isinstance(size, int) else _MOST_HALVINGS):
            middle = body.math("shr", body.math("add", start, end), one)
            left = body.math("lt", start, end)
            place = body.index(body.math("min", middle, last), size)
            if order:
                place = wrapped(body, body.at(order[0], [*lead, place], left), size)
            probe = body.at(line, [*lead, place], left)
            behind = body.math("gt" if right else "ge", probe, sought)
            before = body.math("and", left, body.math("not", behind))
            start = body.where(before, body.math("add", middle, one), start)
            end = body.where(before, end, middle)
        return start
