"""Random graphs of 8-bit integers: chains of products, convolutions with windows, sums with earlier tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, f32, i8
from weft.ops.graph import FuncOp
from weft.spatial.int8_builder import Int8Builder


@dataclass(frozen=True)
class RandomProgram:
    """A graph, what is known of its arguments, and values for the others."""

    function: FuncOp
    constants: dict[str, np.ndarray]
    inputs: list[np.ndarray]

    @property
    def arrays(self) -> list[np.ndarray]:
        """All arguments, in order."""
        return [*self.inputs, *self.constants.values()]


def random_program(seed: int) -> RandomProgram:
    """A program that a seed stands for: of matrices if it is even, of images if it is odd."""
    rng = np.random.default_rng(seed)
    return _matrices(rng) if seed % 2 == 0 else _images(rng)


def _weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape, dtype=np.int8)


def _scale(rng: np.random.Generator, terms: int, channels: int) -> np.ndarray:
    return (rng.uniform(0.5, 2.0, channels) * 40 / (np.sqrt(terms) * 5500)).astype(np.float32)


def _matrices(rng: np.random.Generator) -> RandomProgram:
    rows, width = int(rng.integers(1, 90)), int(rng.integers(1, 700))
    build = Int8Builder("matrices", {"x": Tensor(i8, (rows, width))})
    given, value = _weights(rng, rows, width), build.argument("x")
    for _ in range(int(rng.integers(0, 4))):
        out = int(rng.integers(1, 700))
        product = build.dot(value, _weights(rng, width, out))
        value, width = _converted(rng, build, product, width, out), out
    if rng.integers(2):
        value = build.dot(value, _weights(rng, width, int(rng.integers(1, 400))))
    elif value == build.argument("x"):
        value = build.to_int8(build.scaled(value, _scale(rng, 1, width) * 5500))
    function = build.finish([value])
    return RandomProgram(function, build.constants, [given])


def _converted(rng: np.random.Generator, build: Int8Builder, product: SSAValue, terms: int, channels: int) -> SSAValue:
    value = build.scaled(product, _scale(rng, terms, channels))
    if rng.integers(4):
        value = build.add(value, rng.uniform(-40, 40, channels).astype(np.float32))
    if rng.integers(2):
        value = build.builder.relu(value)
    return build.to_int8(value)


def _images(rng: np.random.Generator) -> RandomProgram:
    height, width, channels = (int(size) for size in rng.integers([3, 3, 1], [12, 12, 400]))
    build = Int8Builder("images", {"x": Tensor(i8, (1, channels, height, width))})
    given = _weights(rng, 1, channels, height, width)
    value, earlier = build.argument("x"), None
    for _ in range(int(rng.integers(1, 4))):
        shape = tuple(int(size) for size in build.builder.tensor(value).shape)  # type: ignore[arg-type]
        side = int(rng.choice([1, 3])) if min(shape[2:]) > 2 else 1
        stride, padding, out = int(rng.choice([1, 1, 2])), side // 2, int(rng.integers(1, 400))
        weights = _weights(rng, out, shape[1], side, side)
        product = build.convolution(value, weights, (stride, stride), (padding, padding), zero=-128)
        previous = value
        made = tuple(int(size) for size in build.builder.tensor(product).shape)  # type: ignore[arg-type]
        if earlier is not None and tuple(build.builder.tensor(earlier).shape) == made:
            scaled = build.scaled(product, _scale(rng, weights[0].size, out))
            beside = build.scaled(earlier, np.full(out, 0.5, np.float32))
            value = build.to_int8(build.add(build.add(scaled, rng.uniform(-9, 9, out).astype(np.float32)), beside))
        else:
            value = _converted(rng, build, product, weights[0].size, out)
        earlier = previous
    shape = tuple(int(size) for size in build.builder.tensor(value).shape)  # type: ignore[arg-type]
    ending = int(rng.integers(4))
    if ending == 0 and min(shape[2:]) > 2:
        value = build.max_pool(value, 3, 2, 1)
    elif ending == 1:
        pooled = build.to_int8(build.scaled(build.pixel_sum(value), np.full(shape[1], 0.05, np.float32)))
        value = build.dot(build.builder.reshape(pooled, shape=(1, shape[1])), _weights(rng, shape[1], 50))
    function = build.finish([value])
    return RandomProgram(function, build.constants, [given])


def vector_stack(widths: Sequence[int], seed: int = 0, *, residual: bool = False, sums: bool = False) -> RandomProgram:
    """Products of one vector after another, as in a token's step; with `sums` the last is left in 32 bits."""
    rng = np.random.default_rng(seed)
    build = Int8Builder("stack", {"x": Tensor(i8, (1, widths[0]))})
    given, value = _weights(rng, 1, widths[0]), build.argument("x")
    for number, (width, out) in enumerate(pairwise(widths)):
        product = build.dot(value, _weights(rng, width, out))
        if sums and number == len(widths) - 2:
            value = product
        elif residual and width == out:
            made = build.add(build.scaled(product, _scale(rng, width, out)), rng.uniform(-9, 9, out).astype(np.float32))
            value = build.to_int8(build.add(made, build.builder.cast(value, dtype=f32)))
        else:
            value = _converted(rng, build, product, width, out)
    return RandomProgram(build.finish([value]), build.constants, [given])
