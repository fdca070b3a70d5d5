"""Sorting, and the greatest elements. A NaN is greater than all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size
from weft.ir.types import Tensor, boolean, i64
from weft.ops.base import Structured, op
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.indexing.index import check_dim
from weft.ops.numerics import NARROW
from weft.ops.rules import Gradients, Values, zeros
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, along


def sorted_places(x: np.ndarray, dim: int, descending: bool) -> np.ndarray:
    """The positions of the elements in order; equal elements stay in order, too."""
    wide = x.astype(np.float32) if x.dtype in NARROW else x
    if not descending:
        return np.argsort(wide, axis=dim, kind="stable").astype(np.int64)
    backwards = np.flip(np.argsort(np.flip(wide, dim), axis=dim, kind="stable"), dim)
    return (x.shape[dim] - 1 - backwards).astype(np.int64)


def scattered_back(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
    """The gradient of sorted values, each at the place that its value came from."""
    return (b.scatter(zeros(b, operands[0]), results[1], grads[0], dim=dim, kind="add"),)


@op(
    "sort",
    stablehlo="sort",
    samples=[
        Sample((Input(shape),), {"dim": dim, "descending": descending, "stable": stable}, (*NUMBERS, boolean))
        for shape, dim in (((9,), 0), ((3, 17), 1), ((4, 2, 3), 0), ((3, 0), 1), ((2, 1), 1), ((0, 4), 1))
        for descending, stable in ((False, True), (True, True), (False, False))
    ],
)
class Sort(Structured):
    """The elements along `dim` in ascending or descending order, and where they stood.

    If `stable`, equal elements stay in the order they were in. A NaN is last in ascending order.
    """

    @staticmethod
    def sharding(x: Tensor, dim: int, **params: Any) -> ShardingRule:
        return along(dim, (x,), (x, x))

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        (x,) = tensors
        check_dim("sort", x, params["dim"])
        return x, Tensor(i64, x.shape)

    @staticmethod
    def reference(x: np.ndarray, dim: int, descending: bool, stable: bool) -> tuple[np.ndarray, np.ndarray]:
        places = sorted_places(x, dim, descending)
        return np.take_along_axis(x, places, dim), places

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        dim: int,
        descending: bool,
        stable: bool,
    ) -> Gradients:
        return scattered_back(b, grads, operands, results, dim)

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int, descending: bool, stable: bool
    ) -> tuple[SSAValue, SSAValue]:
        return b.sort(operands[0], dim=dim + 1, descending=descending, stable=stable)


@op(
    "topk",
    onnx="TopK",
    samples=[
        Sample((Input(shape),), {"k": k, "dim": dim, "largest": largest, "sorted": True}, NUMBERS)
        for shape, dim, k in (((9,), 0, 4), ((3, 17), 1, 1), ((4, 2, 3), 0, 4), ((3, 5), 1, 0), ((0, 4), 1, 2))
        for largest in (True, False)
    ],
)
class TopK(Structured):
    """The `k` greatest (or least) elements along `dim`, and where they stood; in order, if `sorted`.

    Of equal elements the first ones are taken. A NaN is greater than all numbers.
    """

    @staticmethod
    def sharding(x: Tensor, dim: int, **params: Any) -> ShardingRule:
        return along(dim, (x,), (x, x))

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        (x,) = tensors
        k: Size = params["k"]
        dim: int = params["dim"]
        check_dim("topk", x, dim)
        size = x.shape[dim]
        if isinstance(k, int) and (k < 0 or (isinstance(size, int) and k > size)):
            raise ShapeError(f"topk: {k} elements of {size} in dimension {dim} of {x}")
        shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
        return Tensor(x.dtype, shape), Tensor(i64, shape)

    @staticmethod
    def reference(x: np.ndarray, k: int, dim: int, largest: bool, sorted: bool) -> tuple[np.ndarray, np.ndarray]:
        places = np.take(sorted_places(x, dim, largest), range(k), dim)
        return np.take_along_axis(x, places, dim), places

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        k: Size,
        dim: int,
        largest: bool,
        sorted: bool,
    ) -> Gradients:
        return scattered_back(b, grads, operands, results, dim)

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], k: Size, dim: int, largest: bool, sorted: bool
    ) -> tuple[SSAValue, SSAValue]:
        return b.topk(operands[0], k=k, dim=dim + 1, largest=largest, sorted=sorted)
