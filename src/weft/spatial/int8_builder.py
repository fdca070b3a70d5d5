"""Builds graphs of 8-bit integers: products, their conversion back to 8 bits, sums with another tensor, windows.

What it appends are ordinary graph ops, so running the graph on NumPy says what the machine has to compute, bit by bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, StringAttr
from xdsl.dialects.builtin import i64 as index_type
from xdsl.ir import Operation, SSAValue

from weft.ir.types import DType, Tensor, f32, i8, i32, tensor_type
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp

_CHIPS = "spatial.chips"


def chips_of(op: Operation) -> tuple[int, ...]:
    """The chips that compute an op, where the graph says so."""
    found = op.attributes.get(_CHIPS)
    return tuple(int(chip) for chip in found.get_values()) if isinstance(found, DenseArrayBase) else ()


@dataclass
class Int8Builder:
    """A function that is being built, and its constants by name."""

    name: str
    arguments: dict[str, Tensor]
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def __post_init__(self) -> None:
        self.function = FuncOp.make(self.name, self.arguments)
        self.builder = GraphBuilder(self.function.block)

    @contextmanager
    def on(self, *chips: int) -> Generator[None]:
        """What is appended meanwhile is computed by these chips, each all of it."""
        before = len(list(self.function.block.ops))
        yield
        for op in list(self.function.block.ops)[before:]:
            op.attributes[_CHIPS] = DenseArrayBase.from_list(index_type, chips)

    def argument(self, name: str) -> SSAValue:
        return self.function.block.args[list(self.arguments).index(name)]

    def constant(self, name: str, values: np.ndarray, dtype: DType) -> SSAValue:
        """A new argument whose values are known."""
        made = Tensor(dtype, values.shape)
        value = self.function.block.insert_arg(tensor_type(made), len(self.function.block.args))
        self.arguments[name] = made
        self.constants[name] = values
        self.function.attributes["arg_names"] = ArrayAttr(StringAttr(each) for each in self.arguments)
        return value

    def dot(self, x: SSAValue, weights: np.ndarray) -> SSAValue:
        """[M, K] by [K, N], summed in 32 bits."""
        w = self.constant(f"w{len(self.constants)}", weights, i8)
        return self.builder.dot(x, w, dtype=i32)

    def convolution(
        self,
        x: SSAValue,
        weights: np.ndarray,
        strides: tuple[int, ...],
        padding: tuple[int, int] | tuple[tuple[int, ...], ...],
        zero: int = 0,
    ) -> SSAValue:
        """Weights are [N, C, rows, columns]; around the image are pixels of `zero`, as many before as behind or not."""
        b = self.builder
        w = b.cast(self.constant(f"w{len(self.constants)}", weights, i8), dtype=i32)
        wide = b.cast(x, dtype=i32)
        sides = [(each, each) if isinstance(each, int) else tuple(each) for each in padding]
        if any(map(any, sides)):
            low, high = zip((0, 0), (0, 0), *sides, strict=True)
            wide = b.pad(wide, low=low, high=high, value=zero)
        return b.convolution(
            wide,
            w,
            strides=strides,
            padding=((0, 0), (0, 0)),
            dilation=(1, 1),
            groups=1,
            transposed=False,
            output_padding=(0, 0),
        )

    def pixel_sum(self, x: SSAValue) -> SSAValue:
        """The sum over all pixels, in 32 bits."""
        return self.builder.sum(self.builder.cast(x, dtype=i32), dims=(2, 3), keep=True)

    def scaled(self, x: SSAValue, scale: np.ndarray) -> SSAValue:
        """A product, or a tensor, in f32 times a number for each channel."""
        wide = self.builder.cast(x, dtype=f32)
        return self.builder.mul(wide, self._channels(wide, scale))

    def add(self, x: SSAValue, y: SSAValue | np.ndarray) -> SSAValue:
        return self.builder.add(x, self._channels(x, y) if isinstance(y, np.ndarray) else y)

    def to_int8(self, x: SSAValue) -> SSAValue:
        """Rounded to the nearest integer of 8 bits; what is beyond becomes the last."""
        b = self.builder
        rounded = b.round(x)
        clamped = b.minimum(b.maximum(rounded, b.full_like(x, -128.0)), b.full_like(x, 127.0))
        return b.cast(clamped, dtype=i8)

    def max_pool(self, x: SSAValue, window: int, stride: int, padding: int) -> SSAValue:
        sides = ((padding, padding),) * 2
        return self.builder.max_pool(x, window=(window,) * 2, strides=(stride,) * 2, padding=sides, dilation=(1, 1))

    def finish(self, results: Sequence[SSAValue]) -> FuncOp:
        self.builder.insert(ReturnOp.make(results))
        return self.function

    def _channels(self, like: SSAValue, values: np.ndarray) -> SSAValue:
        rank = self.builder.tensor(like).rank
        shaped = values.astype(np.float32).reshape(-1, *(1,) * (rank - 2))
        return self.constant(f"c{len(self.constants)}", shaped, f32)
