"""What the values of a graph of floats are while it is quantized: integers with a scale, or what is not rounded yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from xdsl.ir import SSAValue


@dataclass(frozen=True)
class Quantized:
    """A matrix of 8-bit integers; 1 stands for `scale`."""

    value: SSAValue
    scale: float


@dataclass(frozen=True)
class PixelWindow:
    """How a convolution goes over an image."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Pending:
    """A product, a bias and tensors times factors, which become one conversion to 8 bits."""

    source: Quantized | None = None
    weights: np.ndarray | None = None
    """[K, N]; of a convolution [N, C, rows, columns]; of a sum over all pixels a number for each channel."""
    bias: np.ndarray | None = None
    beside: tuple[tuple[Quantized, np.ndarray], ...] = ()
    function: str = ""
    """What is computed of all that at the end: relu, tanh or sigmoid; nothing is added to it then."""
    window: PixelWindow | Literal["all"] | None = None
    """Where the product is a convolution, or a sum over all pixels."""

    def times(self, factor: np.ndarray) -> Pending:
        """All of it times a number for each channel."""
        own = factor.reshape(-1, 1, 1, 1) if isinstance(self.window, PixelWindow) else factor
        weights = None if self.weights is None else self.weights * own
        bias = None if self.bias is None else self.bias * factor
        beside = tuple((each, before * factor) for each, before in self.beside)
        return Pending(self.source, weights, bias, beside, window=self.window)


@dataclass(frozen=True)
class Flattened:
    """An image as one row."""

    of: SSAValue


@dataclass(frozen=True)
class HeadView:
    """A matrix seen by heads: of `axes` "shd", rows first, or "hsd"."""

    of: SSAValue
    heads: int
    axes: str
    repeats: int = 1


@dataclass(frozen=True)
class Norm:
    """A norm as far as it was read; `step` says what of it the value is.

    sum, mean: of x · centred: x less its mean · square · squares: their sum · variance · root · normed
    """

    of: SSAValue
    step: str
    centred: bool = False
    epsilon: float = 0.0
    gamma: np.ndarray | None = None
    beta: np.ndarray | None = None


@dataclass(frozen=True)
class Softmax:
    """A softmax over the last dimension as far as it was read: max, shifted, powers, total, weights."""

    of: SSAValue
    step: str


@dataclass(frozen=True)
class Activated:
    """silu(x), which may be multiplied by another tensor."""

    of: SSAValue


@dataclass(frozen=True)
class Rotary:
    """A part of rotated positions: a half of each head ("0", "1", "-1"), "turned", a product by "cosine" or "sine", or
    the "pair" of these."""

    of: SSAValue
    heads: int
    part: str
    factors: np.ndarray | None = field(default=None, compare=False)


def constant_of(value: Any) -> np.ndarray | None:
    """A constant, if it is one."""
    return cast(np.ndarray, value) if isinstance(value, np.ndarray) else None
