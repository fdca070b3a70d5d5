"""ResNet-50, -101 and -152 as graphs of 8-bit integers, with random weights and scales that keep values in range.

After a ReLU the least integer, -128, stands for 0: the conversion to 8 bits saturates there, so a ReLU costs nothing,
and padding is -128. The image arrives with the windows of the first convolution unfolded, 147 numbers for each of its
pixels. The stride is in the 3 × 3 convolutions.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, i8
from weft.spatial.int8_builder import Int8Builder
from weft.testing.spatial.programs import RandomProgram

DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
ZERO = -128


class _Network:
    def __init__(self, side: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.build = Int8Builder("resnet", {"x": Tensor(i8, (1, 147, side, side))})

    def convolution(
        self, x: SSAValue, channels: int, size: int = 1, stride: int = 1, beside: SSAValue | None = None
    ) -> SSAValue:
        """A convolution, a tensor beside it if there is one, and a ReLU."""
        build, rng = self.build, self.rng
        ins = int(build.builder.tensor(x).shape[1])  # type: ignore[arg-type]
        weights = rng.normal(0, 30, (channels, ins, size, size)).clip(-127, 127).astype(np.int8)
        product = build.convolution(x, weights, (stride, stride), (size // 2, size // 2), zero=ZERO)
        scale = np.full(channels, 1.0 / (30 * np.sqrt(ins * size * size)), np.float32)
        # What -128 stands for is 0: the weights' sums times 128 are taken off, and the result is put 128 below.
        sums = weights.reshape(channels, -1).sum(1, dtype=np.int64)
        bias = (scale * 128 * sums).astype(np.float32) + np.float32(ZERO)
        value = build.scaled(product, scale)
        if beside is not None:
            value = build.add(value, bias + np.float32(64))
            value = build.add(value, build.scaled(beside, np.full(channels, 0.5, np.float32)))
        else:
            value = build.add(value, bias)
        return build.to_int8(value)


def resnet(depth: int = 50, side: int = 112, seed: int = 0, classes: int = 1000) -> RandomProgram:
    """A ResNet of so many layers; `side` is that of the first convolution's output, 112 for images of 224."""
    network = _Network(side, seed)
    build = network.build
    value = network.convolution(build.argument("x"), 64)
    value = build.max_pool(value, 3, 2, 1)
    for stage, blocks in enumerate(DEPTHS[depth]):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            inner = network.convolution(value, width)
            inner = network.convolution(inner, width, 3, stride)
            beside = value if block else network.convolution(value, 4 * width, 1, stride)
            value = network.convolution(inner, 4 * width, beside=beside)
    channels, height = 2048, int(build.builder.tensor(value).shape[2])  # type: ignore[arg-type]
    pooled = build.to_int8(build.scaled(build.pixel_sum(value), np.full(channels, 1 / height**2, np.float32)))
    flat = build.builder.reshape(pooled, shape=(1, channels))
    weights = network.rng.integers(-127, 128, (channels, classes), dtype=np.int8)
    function = build.finish([build.dot(flat, weights)])
    image = network.rng.integers(-128, 128, (1, 147, side, side), dtype=np.int8)
    return RandomProgram(function, build.constants, [image])
