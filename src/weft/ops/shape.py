"""Views: ops whose result is the operand's memory seen through another shape, order or stride."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, maximum, minimum, product
from weft.ir.types import Tensor
from weft.ops.base import View, broadcast_shapes, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.reshaping import reshape_index
from weft.ops.rules import Gradients, Values, iota, zeros
from weft.ops.samples import MOVED, Input, Sample
from weft.ops.sharding_rules import ShardingRule, blocks_of
from weft.ops.windows.window import window_counts


@op(
    "permute",
    onnx="Transpose",
    stablehlo="transpose",
    samples=[
        Sample((Input((2, 3, 4)),), {"dims": (2, 0, 1)}, MOVED),
        Sample((Input((3, 0)),), {"dims": (1, 0)}, MOVED),
        Sample((Input(()),), {"dims": ()}, MOVED),
    ],
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
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dims: tuple[int, ...]) -> Gradients:
        return (b.permute(grads[0], dims=tuple(dims.index(i) for i in range(len(dims)))),)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], dims: tuple[int, ...]) -> SSAValue:
        return b.permute(operands[0], dims=(0, *(d + 1 for d in dims)))

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
        Sample((Input((2, 3, 4)),), {"shape": (6, 4)}, MOVED),
        Sample((Input((6, 4)),), {"shape": (2, 3, 2, 2)}, MOVED),
        Sample((Input(()),), {"shape": (1, 1)}, MOVED),
        Sample((Input((4, 6)),), {"shape": (8, 3)}, MOVED),
        Sample((Input((0, 6)),), {"shape": (2, 0, 5)}, MOVED),
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
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, shape: tuple[Size, ...]) -> Gradients:
        return (b.reshape(grads[0], shape=b.tensor(operands[0]).shape),)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], shape: tuple[Size, ...]) -> SSAValue:
        return b.reshape(operands[0], shape=(b.tensor(operands[0]).shape[0], *shape))

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, shape: tuple[Size, ...]) -> Value:
        return body.at(x, reshape_index(index, shape, x.tensor.shape))


@op(
    "broadcast",
    onnx="Expand",
    stablehlo="broadcast_in_dim",
    samples=[
        Sample((Input((3, 1)),), {"shape": (3, 5)}, MOVED),
        Sample((Input((1, 4)),), {"shape": (2, 3, 4)}, MOVED),
        Sample((Input(()),), {"shape": (2, 2)}, MOVED),
        Sample((Input((1, 3)),), {"shape": (0, 3)}, MOVED),
        Sample((Input((2, 1, 1)),), {"shape": (2, 1, 7)}, MOVED),
    ],
)
class Broadcast(View):
    """Repeat dimensions of size 1, and the whole in new leading dimensions, until the shape is `shape`."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        shape: tuple[Size, ...] = params["shape"]
        if broadcast_shapes(x.shape, shape) != shape:
            raise ShapeError(f"broadcast: {x} does not broadcast to {tuple(map(str, shape))}")
        return Tensor(x.dtype, shape)

    @staticmethod
    def reference(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(x, shape)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, shape: tuple[Size, ...]) -> Gradients:
        source = b.tensor(operands[0]).shape
        lead = len(shape) - len(source)
        repeated = tuple(d for d, size in enumerate(shape) if d < lead or source[d - lead] != size)
        if not repeated:
            return (grads[0],)
        return (b.reshape(b.sum(grads[0], dims=repeated, keep=False), shape=source),)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], shape: tuple[Size, ...]) -> SSAValue:
        size, *inner = b.tensor(operands[0]).shape
        aligned = b.reshape(operands[0], shape=(size, *(1 for _ in range(len(shape) - len(inner))), *inner))
        return b.broadcast(aligned, shape=(size, *shape))

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, shape: tuple[Size, ...]) -> Value:
        source = x.tensor.shape
        lead = len(shape) - len(source)
        return body.at(x, [0 if size == 1 else index[lead + d] for d, size in enumerate(source)])


@op(
    "slice",
    onnx="Slice",
    stablehlo="slice",
    samples=[
        Sample((Input((7,)),), {"starts": (2,), "shape": (3,), "steps": (1,)}, MOVED),
        Sample((Input((7, 5)),), {"starts": (1, 0), "shape": (3, 5), "steps": (2, 1)}, MOVED),
        Sample((Input((7, 5)),), {"starts": (6, 4), "shape": (7, 2), "steps": (-1, -3)}, MOVED),
        Sample((Input((4, 5)),), {"starts": (4, 1), "shape": (0, 2), "steps": (1, 2)}, MOVED),
        Sample((Input(()),), {"starts": (), "shape": (), "steps": ()}, MOVED),
    ],
)
class Slice(View):
    """The elements at `starts + i * steps`; a negative step walks backwards."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        starts, shape, steps = params["starts"], params["shape"], params["steps"]
        if not len(starts) == len(shape) == len(steps) == x.rank:
            raise ShapeError(f"slice: {x} needs {x.rank} starts, sizes and steps, got {starts}, {shape}, {steps}")
        for start, count, step, size in zip(starts, shape, steps, x.shape, strict=True):
            last = start + (count - 1) * step
            outside = isinstance(count, int) and count < 0
            if count != 0 and all(isinstance(bound, int) for bound in (start, last, size)):
                outside |= not (0 <= start < size and 0 <= last < size)
            if step == 0 or outside:
                raise ShapeError(f"slice: {count} elements from {start} in steps of {step} are not within {x}")
        return Tensor(x.dtype, shape)

    @staticmethod
    def sharding(x: Tensor, starts: tuple[Size, ...], shape: tuple[Size, ...], steps: tuple[Size, ...]) -> ShardingRule:
        return blocks_of(x.shape, shape, starts, steps)

    @staticmethod
    def local_params(x: Tensor, part: Tensor, starts: tuple[Size, ...], **params: Any) -> dict[str, Any]:
        """A block of a part starts where the whole one does, in the part's measure."""
        sizes = zip(starts, x.shape, part.shape, strict=True)
        local = tuple(start if whole == own else start * own // whole for start, whole, own in sizes)
        return {"starts": local, **params}

    @staticmethod
    def reference(x: np.ndarray, starts: tuple[int, ...], shape: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
        slices: list[slice] = []
        for start, count, step in zip(starts, shape, steps, strict=True):
            stop = start + count * step
            slices.append(slice(start, None if stop < 0 else stop, step) if count else slice(0, 0))
        return x[(..., *slices)]  # the ellipsis keeps an array of rank 0 an array

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        starts: tuple[Size, ...],
        shape: tuple[Size, ...],
        steps: tuple[int, ...],
    ) -> Gradients:
        (x,) = operands
        if any(step != 1 for step in steps):
            return (b.update_slice(zeros(b, x), grads[0], starts=starts, steps=steps),)
        sizes = b.tensor(x).shape
        high = tuple(size - start - count for size, start, count in zip(sizes, starts, shape, strict=True))
        return (b.pad(grads[0], low=starts, high=high, value=0),)

    @staticmethod
    def batch(
        b: GraphBuilder,
        operands: Values,
        batched: Sequence[bool],
        starts: tuple[Size, ...],
        shape: tuple[Size, ...],
        steps: tuple[int, ...],
    ) -> SSAValue:
        (x,) = operands
        return b.slice(x, starts=(0, *starts), shape=(b.tensor(x).shape[0], *shape), steps=(1, *steps))

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        starts: tuple[Size, ...],
        shape: tuple[Size, ...],
        steps: tuple[int, ...],
    ) -> Value:
        return body.at(x, [start + i * step for start, i, step in zip(starts, index, steps, strict=True)])


@op(
    "diagonal",
    samples=[
        Sample((Input((4, 6)),), {"dim1": 0, "dim2": 1, "offset": 0}, MOVED),
        Sample((Input((4, 6)),), {"dim1": 0, "dim2": 1, "offset": 3}, MOVED),
        Sample((Input((4, 2, 6)),), {"dim1": 2, "dim2": 0, "offset": -1}, MOVED),
        Sample((Input((3, 3)),), {"dim1": 0, "dim2": 1, "offset": 5}, MOVED),
    ],
)
class Diagonal(View):
    """The elements whose index in `dim2` is their index in `dim1` plus `offset`, as a last dimension."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        dim1: int = params["dim1"]
        dim2: int = params["dim2"]
        offset: int = params["offset"]
        if dim1 == dim2 or not (0 <= dim1 < x.rank and 0 <= dim2 < x.rank):
            raise ShapeError(f"diagonal: {dim1} and {dim2} are not two dimensions of {x}")
        rows, columns = x.shape[dim1] + min(offset, 0), x.shape[dim2] - max(offset, 0)
        rest = [size for d, size in enumerate(x.shape) if d not in (dim1, dim2)]
        return Tensor(x.dtype, (*rest, maximum(minimum(rows, columns), 0)))

    @staticmethod
    def reference(x: np.ndarray, dim1: int, dim2: int, offset: int) -> np.ndarray:
        return np.diagonal(x, offset, dim1, dim2)

    @staticmethod
    def vjp(
        b: GraphBuilder, grads: Values, operands: Values, results: Values, dim1: int, dim2: int, offset: int
    ) -> Gradients:
        (x,), (y,) = operands, results
        shape = b.tensor(y).shape
        row = iota(b, shape[-1])
        places = [b.add(row, b.full_like(row, max(-offset, 0))), b.add(row, b.full_like(row, max(offset, 0)))]
        target = {"dims": (dim1, dim2), "position": len(shape) - 1, "accumulate": False}
        return (b.index_put(zeros(b, x), *places, grads[0], **target),)

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], dim1: int, dim2: int, offset: int
    ) -> SSAValue:
        return b.diagonal(operands[0], dim1=dim1 + 1, dim2=dim2 + 1, offset=offset)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, dim1: int, dim2: int, offset: int) -> Value:
        *outer, along = index
        rest = iter(outer)
        special = {dim1: along + max(-offset, 0), dim2: along + max(offset, 0)}
        return body.at(x, [special[d] if d in special else next(rest) for d in range(x.tensor.rank)])


@op(
    "windows",
    samples=[
        Sample((Input((2, 7, 3)),), {"window": (3,), "strides": (2,), "dilation": (1,)}, MOVED),
        Sample((Input((2, 5, 6, 4)),), {"window": (2, 3), "strides": (1, 2), "dilation": (2, 1)}, MOVED),
        Sample((Input((0, 4, 2)),), {"window": (4,), "strides": (1,), "dilation": (1,)}, MOVED),
    ],
)
class Windows(View):
    """All windows over the dimensions between the first and the last: [N, ..., C] as [N, counts..., window..., C].

    Windows have `window` elements, `dilation` apart, every `strides`; they may overlap.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        window, none = params["window"], tuple((0, 0) for _ in params["window"])
        counts = window_counts("windows", x.shape[1:-1], window, params["strides"], none, params["dilation"])
        return Tensor(x.dtype, (x.shape[0], *counts, *window, x.shape[-1]))

    @staticmethod
    def reference(
        x: np.ndarray, window: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...]
    ) -> np.ndarray:
        spatial = range(1, x.ndim - 1)
        reach = tuple((extent - 1) * step + 1 for extent, step in zip(window, dilation, strict=True))
        views = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(spatial))  # [N, places..., C, reach...]
        chosen = views[(slice(None), *(slice(None, None, step) for step in strides), slice(None))]
        chosen = chosen[(..., *(slice(None, None, step) for step in dilation))]
        return np.moveaxis(chosen, x.ndim - 1, -1)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        window: tuple[Size, ...],
        strides: tuple[Size, ...],
        dilation: tuple[Size, ...],
    ) -> Gradients:
        shape, none = b.tensor(operands[0]).shape[1:-1], tuple((0, 0) for _ in window)
        return (b.fold(grads[0], shape=shape, strides=strides, padding=none, dilation=dilation),)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        size, rows, *rest = b.tensor(operands[0]).shape
        tall = b.windows(b.reshape(operands[0], shape=(size * rows, *rest)), **params)
        return b.reshape(tall, shape=(size, rows, *b.tensor(tall).shape[1:]))

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        window: tuple[Size, ...],
        strides: tuple[Size, ...],
        dilation: tuple[Size, ...],
    ) -> Value:
        row, *inner, channel = index
        rank = len(window)
        steps = zip(inner[:rank], inner[rank:], strides, dilation, strict=True)
        return body.at(x, [row, *(i * stride + k * step for i, k, stride, step in steps), channel])
