"""Reductions over dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from weft.ir.expr import Size
from weft.ir.types import Tensor, f32
from weft.ops.arithmetic import NUMBERS
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.samples import Input, Sample

REDUCTION_SAMPLES = tuple(
    Sample((Input(shape),), {"dims": dims, "keep": keep}, NUMBERS)
    for shape, dims in [((7,), (0,)), ((3, 5), (1,)), ((3, 5), (0,)), ((2, 3, 33), (0, 2)), ((4, 4), ()), ((), ())]
    for keep in (False, True)
)


class DimensionReduction(Reduction):
    """A reduction over the dimensions `dims`, which stay with size 1 if `keep`."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        dims: tuple[int, ...] = params["dims"]
        if params["keep"]:
            return Tensor(x.dtype, tuple(1 if d in dims else size for d, size in enumerate(x.shape)))
        return Tensor(x.dtype, tuple(size for d, size in enumerate(x.shape) if d not in dims))

    @staticmethod
    def ranges(x: Tensor, dims: tuple[int, ...], keep: bool) -> tuple[Size, ...]:
        return tuple(x.shape[d] for d in dims)

    @staticmethod
    def element(
        body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, dims: tuple[int, ...], keep: bool
    ) -> Value:
        kept = iter([size for d, size in enumerate(index) if d not in dims] if keep else index)
        reduced = dict(zip(dims, over, strict=True))
        return body.at(x, [reduced[d] if d in reduced else next(kept) for d in range(x.tensor.rank)])


@op("sum", stablehlo="reduce", onnx="ReduceSum", samples=REDUCTION_SAMPLES)
class Sum(DimensionReduction):
    """Sum over dimensions; f16 and bf16 are accumulated in f32."""

    KIND: ClassVar[str] = "sum"

    @staticmethod
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        wide = x.astype(f32.numpy) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x
        return np.sum(wide, axis=dims, keepdims=keep, dtype=wide.dtype).astype(x.dtype)
