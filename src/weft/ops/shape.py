"""Ops that move elements without computing: views, padding, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.errors import ShapeError
from weft.ir.expr import Size, product
from weft.ir.types import Tensor
from weft.ops.base import View, op
from weft.ops.body import Body, Operand, Value
from weft.ops.reshaping import reshape_index
from weft.ops.samples import Input, Sample


@op(
    "permute",
    onnx="Transpose",
    stablehlo="transpose",
    samples=[Sample((Input((2, 3, 4)),), {"dims": (2, 0, 1)}), Sample((Input((3, 0)),), {"dims": (1, 0)})],
)
class Permute(View):
    """Reorder dimensions: dimension i of the result is dimension `dims[i]` of the operand."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        dims: tuple[int, ...] = params["dims"]
        if sorted(dims) != list(range(x.rank)):
            raise ShapeError(f"permute: {dims} is not a permutation of the {x.rank} dimensions")
        return Tensor(x.dtype, tuple(x.shape[d] for d in dims))

    @staticmethod
    def reference(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
        return np.transpose(x, dims)

    @staticmethod
    def vjp(b: Any, grads: Any, operands: Any, results: Any, dims: tuple[int, ...]) -> Any:
        return (b.permute(grads[0], dims=tuple(dims.index(i) for i in range(len(dims)))),)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, dims: tuple[int, ...]) -> Value:
        source: list[Size] = [0] * len(dims)
        for position, dim in enumerate(dims):
            source[dim] = index[position]
        return body.at(x, source)


@op(
    "reshape",
    onnx="Reshape",
    stablehlo="reshape",
    samples=[
        Sample((Input((2, 3, 4)),), {"shape": (6, 4)}),
        Sample((Input((6, 4)),), {"shape": (2, 3, 2, 2)}),
        Sample((Input(()),), {"shape": (1, 1)}),
        Sample((Input((4, 6)),), {"shape": (8, 3)}),
    ],
)
class Reshape(View):
    """The same elements in row-major order, in another shape."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        shape: tuple[Size, ...] = params["shape"]
        if product(x.shape) != product(shape):
            raise ShapeError(f"reshape: {x} has not as many elements as {tuple(map(str, shape))}")
        return Tensor(x.dtype, shape)

    @staticmethod
    def reference(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.reshape(x, shape)

    @staticmethod
    def vjp(b: Any, grads: Any, operands: Any, results: Any, shape: tuple[Size, ...]) -> Any:
        return (b.reshape(grads[0], shape=b.tensor(operands[0]).shape),)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, shape: tuple[Size, ...]) -> Value:
        return body.at(x, reshape_index(index, shape, x.tensor.shape))
