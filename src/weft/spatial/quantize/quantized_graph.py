"""A graph of 8-bit integers that stands for one of floats, and how arguments and results are converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.ops.graph import FuncOp


@dataclass(frozen=True)
class Argument:
    """An argument or a result: floats of `shape` become integers of [rows, channels], and 1 stands for `scale`."""

    name: str
    shape: tuple[int, ...]
    scale: float
    heads: bool = False
    """Whether it is [1, heads, rows, d] as floats."""
    image: bool = False
    """Whether it is [1, channels, height, width], and is so as integers too."""

    def integers(self, array: np.ndarray) -> np.ndarray:
        """Floats as the machine takes them."""
        flat = array.reshape(self.shape)
        flat = np.moveaxis(flat, -3, -2) if self.heads else flat
        rows = flat if self.image else flat.reshape(-1, self.channels)
        return np.clip(np.rint(rows / self.scale), -128, 127).astype(np.int8)

    def floats(self, array: np.ndarray) -> np.ndarray:
        """What integers stand for."""
        if self.heads:
            split = array.reshape(array.shape[0], self.shape[-3], self.shape[-1]).transpose(1, 0, 2)
            return split.reshape(self.shape).astype(np.float32) * np.float32(self.scale)
        return array.reshape(self.shape).astype(np.float32) * np.float32(self.scale)

    @property
    def channels(self) -> int:
        return self.shape[-1] * (self.shape[-3] if self.heads else 1)


@dataclass(frozen=True)
class QuantizedGraph:
    """A graph of 8-bit integers, its constants, and how its arguments and results are floats."""

    function: FuncOp
    constants: dict[str, np.ndarray]
    arguments: Sequence[Argument]
    results: Sequence[Argument]
