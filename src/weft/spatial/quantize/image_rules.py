"""Quantizes what networks of images are made of: convolutions, pools, sums over pixels, and products behind them.

Images are [1, C, H, W] as integers too. Groups and dilations become zeros of a dense convolution, a sum over a window
one by ones, and a product of a flattened image a convolution whose window is the whole of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.ops.base import GraphOp
from weft.spatial.quantize.float_values import Flattened, Pending, PixelWindow, Quantized, constant_of
from weft.spatial.quantize.rounding import Rounding

_ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "silu")
_ELEMENTWISE = ("cast", "contiguous", "add", "sub", "mul", "div", "maximum", "minimum", *_ACTIVATIONS)


def is_image(value: SSAValue) -> bool:
    """Whether a value becomes the image of a convolution or of a pool; other tensors of rank 4 are heads."""
    left, met = [value], {value}
    while left:
        for use in left.pop().uses:
            name = use.operation.name.removeprefix("graph.")
            if name in ("convolution", "max_pool", "sum_pool"):
                return use.index == 0
            if name in _ELEMENTWISE:
                new = [each for each in use.operation.results if each not in met]
                left, met = left + new, met | set(new)
    return False


class ImageRules(Rounding):
    """The rules of images; a value of rank 4 that has no heads is one."""

    def _channels(self, x: SSAValue) -> int:
        shape = self.seen[x].shape
        return shape[1] if len(shape) == 4 else shape[-1]

    def _per_channel(self, x: SSAValue, constant: np.ndarray) -> np.ndarray | None:
        """A constant as a number for each channel of a value; None where it is none."""
        rank, channels = self.seen[x].ndim, self._channels(x)
        if constant.size == 1:
            return np.broadcast_to(constant.reshape(-1), (channels,))
        axis = -3 if rank == 4 else -1
        fits = constant.size == channels and constant.ndim >= -axis and constant.shape[axis] == channels
        return constant.reshape(-1) if fits else None

    def _image(self, op: Operation, x: SSAValue) -> Quantized | None:
        """An image as integers."""
        shape = self.seen[x].shape
        if len(shape) != 4:
            return None
        if shape[0] != 1:
            raise self._refusal(op, f"of a batch of {shape[0]} images: machines take one", "export it for a batch of 1")
        return self._quantized(op, x)

    def _convolution(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        weights, given = constant_of(found[1]), op.params
        if weights is None or weights.ndim != 4 or given["transposed"]:
            return None
        image = self._image(op, operands[0])
        dense = _dilated(_dense(weights.astype(np.float64), given["groups"]), given["dilation"])
        window = PixelWindow(tuple(given["strides"]), tuple(tuple(each) for each in given["padding"]))
        return None if image is None else Pending(image, dense, window=window)

    def _max_pool(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        image = self._image(op, operands[0])
        if image is None or set(op.params["dilation"]) != {1}:
            return None
        made = self.build.builder.max_pool(
            image.value,
            window=op.params["window"],
            strides=op.params["strides"],
            padding=op.params["padding"],
            dilation=op.params["dilation"],
        )
        return Quantized(made, image.scale)

    def _sum_pool(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        image, channels = self._image(op, operands[0]), self._channels(operands[0])
        ones = np.broadcast_to(np.eye(channels)[:, :, None, None], (channels, channels, *op.params["window"]))
        window = PixelWindow(tuple(op.params["strides"]), tuple(tuple(each) for each in op.params["padding"]))
        return None if image is None else Pending(image, _dilated(ones, op.params["dilation"]), window=window)

    def _pixel_sum(self, op: GraphOp, x: SSAValue) -> Pending | None:
        """The sum over all pixels."""
        image = self._image(op, x)
        whole = tuple(op.params["dims"]) == (2, 3)
        return Pending(image, np.ones(self._channels(x)), window="all") if image is not None and whole else None

    def _flattened(self, op: GraphOp, x: SSAValue, shape: tuple[int, ...]) -> Any:
        """An image as one row."""
        before = self.seen[x].shape
        if before[0] != 1 or shape != (1, int(np.prod(before))):
            return None
        if before[2:] != (1, 1):
            return Flattened(x)
        made = self._quantized(op, x)
        return Quantized(self.build.builder.reshape(made.value, shape=shape), made.scale)

    def _dot_of_image(self, op: GraphOp, image: SSAValue, weights: np.ndarray) -> Pending:
        """[1, C · H · W] by [C · H · W, N]."""
        kernel = weights.astype(np.float64).T.reshape(weights.shape[1], *self.seen[image].shape[1:])
        return Pending(self._quantized(op, image), kernel, window=PixelWindow((1, 1), ((0, 0), (0, 0))))


def _dense(weights: np.ndarray, groups: int) -> np.ndarray:
    """Weights of groups, [N, C / groups, …], as those of all channels."""
    out, own = weights.shape[0] // groups, weights.shape[1]
    made = np.zeros((weights.shape[0], own * groups, *weights.shape[2:]))
    for group in range(groups):
        rows = slice(group * out, (group + 1) * out)
        made[rows, group * own : (group + 1) * own] = weights[rows]
    return made


def _dilated(weights: np.ndarray, dilation: tuple[int, ...]) -> np.ndarray:
    """Weights with zeros in between."""
    sizes = [(size - 1) * step + 1 for size, step in zip(weights.shape[2:], dilation, strict=True)]
    made = np.zeros((*weights.shape[:2], *sizes))
    made[:, :, :: dilation[0], :: dilation[1]] = weights
    return made
