"""Sums of rows that belong together, which an order puts side by side: each result reads its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from weft.errors import ShapeError
from weft.ir.expr import is_nonnegative
from weft.ir.types import Tensor, i64
from weft.ops.base import Structured, op
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.indexing.index import check_index
from weft.ops.numerics import rounded_once
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, einsum

_MADE_LATE = "it is made of `index_put`, which has one, when a program is complete"


def _samples() -> list[Sample]:
    return [
        Sample(
            (
                Input((rows, columns)),
                Input((rows,), 0, rows, i64),
                Input((rows,), 0, results, i64),
                Input((results + 1,), 0, rows + 1, i64),
            ),
            {},
            NUMBERS,
        )
        for rows, columns, results in ((7, 4, 3), (5, 1, 1), (0, 3, 2), (4, 3, 0))
    ]


@op("sum_segments", samples=_samples())
class SumSegments(Structured):
    """The sums [V, D] of rows [N, D]: result v has rows `order[k]` for k from `starts[v]` to below `starts[v + 1]`.

    `keys` [N] say of each k, in order, which result it belongs to; they ascend, and `starts` [V + 1], in 0 to N, tell
    where they change. Sums of narrow floats are made in f32 and rounded once.
    """

    NO_RULE: ClassVar[Mapping[str, str]] = {"vjp": _MADE_LATE, "batch": _MADE_LATE}

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        rows, order, keys, starts = tensors
        check_index("sum_segments", order, starts)
        lines = (order.shape, keys.shape) == (rows.shape[:1], rows.shape[:1])
        if rows.rank != 2 or starts.rank != 1 or not lines or not is_nonnegative(starts.shape[0] - 1):
            raise ShapeError(
                f"sum_segments: {', '.join(map(str, tensors))} do not fit", hint="it takes [N, D], [N], [N] and [V + 1]"
            )
        return Tensor(rows.dtype, (starts.shape[0] - 1, rows.shape[1]))

    @staticmethod
    def sharding(*tensors: Tensor, **params: Any) -> ShardingRule:
        return einsum(".d,.,.,.->.d", tensors)

    @staticmethod
    @rounded_once
    def reference(rows: np.ndarray, order: np.ndarray, keys: np.ndarray, starts: np.ndarray) -> np.ndarray:
        sums = np.zeros((len(starts) - 1, rows.shape[1]), rows.dtype)
        for place, (first, end) in enumerate(pairwise(starts)):
            sums[place] = rows[order[first:end]].sum(0, dtype=rows.dtype)
        return sums
