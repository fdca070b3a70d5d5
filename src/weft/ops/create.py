"""Tensors made of nothing: a constant, and the numbers along a dimension. Both cost less to compute than to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size
from weft.ir.types import DType, Tensor, bf16, boolean, f32, f64, i32, i64, u8
from weft.ops.base import Movement, op
from weft.ops.body import Body, Value
from weft.ops.samples import Sample

Number: TypeAlias = float | int | bool


@op(
    "full",
    samples=[
        Sample((), {"value": value, "shape": shape, "dtype": dtype})
        for value, dtype in [(1.5, f32), (-2, i64), (True, boolean), (float("inf"), bf16), (float("nan"), f64)]
        for shape in [(), (3,), (2, 0), (2, 3)]
    ],
)
class Full(Movement):
    """A tensor of one number."""

    CHEAP: ClassVar[bool] = True

    @classmethod
    def make(cls, *operands: SSAValue, location: LocationAttr | None = None, **params: Any) -> Self:
        # 1, 1.0 and True are different attributes: the type decides, so that equal constants look equal.
        dtype: DType = params["dtype"]
        of_type = float if dtype.is_float else bool if dtype == boolean else int
        return super().make(*operands, location=location, **(params | {"value": of_type(params["value"])}))

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        if tensors:
            raise ShapeError("full takes no operands")
        return Tensor(params["dtype"], params["shape"])

    @staticmethod
    def reference(value: Number, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        return np.full(shape, value, dtype.numpy)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], value: Number, shape: tuple[Size, ...], dtype: DType) -> Value:
        return body.constant(value, dtype)


@op(
    "iota",
    samples=[
        *(
            Sample((), {"shape": shape, "dim": dim, "dtype": dtype})
            for dtype in (i32, i64, f32)
            for shape, dim in [((7,), 0), ((0,), 0), ((2, 5), 0), ((2, 5), 1)]
        ),
        Sample((), {"shape": (6,), "dim": 0, "dtype": u8, "start": 10, "step": -2}),
        Sample((), {"shape": (6,), "dim": 0, "dtype": f32, "start": -1, "step": 3}),
        Sample((), {"shape": (3, 6), "dim": 1, "dtype": f32, "start": 0.1, "step": 0.7}),
        Sample((), {"shape": (6,), "dim": 0, "dtype": bf16, "start": 0.5, "step": 2}),
        Sample((), {"shape": (6,), "dim": 0, "dtype": i64, "start": 0.25, "step": 0.5}),
    ],
)
class Iota(Movement):
    """`start`, `start + step`, … along dimension `dim`; fractions are computed in f64 and converted once."""

    CHEAP: ClassVar[bool] = True

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        shape: tuple[Size, ...] = params["shape"]
        if tensors or not 0 <= params["dim"] < len(shape):
            raise ShapeError(f"iota takes no operands and a dimension of its shape, got {params['dim']}")
        return Tensor(params["dtype"], shape)

    @staticmethod
    def reference(
        shape: tuple[int, ...], dim: int, dtype: DType, start: float | int = 0, step: float | int = 1
    ) -> np.ndarray:
        line = (start + step * np.arange(shape[dim])).astype(dtype.numpy)
        return np.broadcast_to(line.reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape).copy()

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        shape: tuple[Size, ...],
        dim: int,
        dtype: DType,
        start: float | Size = 0,
        step: float | Size = 1,
    ) -> Value:
        if not isinstance(start, float) and not isinstance(step, float):
            return body.position(start + step * index[dim], dtype)
        place = body.position(index[dim], f64)
        first, stride = (
            body.constant(x, f64) if isinstance(x, float) else body.position(x, f64) for x in (start, step)
        )
        return body.cast(body.math("add", first, body.math("mul", stride, place)), dtype)
