"""The jobs of products: which input rows meet which tile of weights.

A convolution is a matrix product whose rows are read where they lie (implicit GEMM): each tap of the kernel is a pass
over the same pixels, a step further, and a border around the image is read as padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.spatial.mapping.layers import Job, Model, Pass, Placed


@dataclass(frozen=True)
class Window:
    """A kernel's size, its steps, and the padding before and after each side."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


def convolution_jobs(model: Model, source: Placed, output: Placed, weights: np.ndarray, window: Window) -> list[Job]:
    """A job for each block of output channels; weights are [N, C, rows, columns]."""
    lanes = model.lanes
    pixels = np.arange(output.height * output.width)
    row, column = np.divmod(pixels, output.width)
    (up, _), (left, _) = window.padding
    model.macs += weights.size * len(pixels)
    jobs: list[Job] = []
    for block in range(output.blocks):
        passes: list[Pass] = []
        for tap in np.ndindex(*window.kernel):
            places = source.position(row * window.strides[0] + tap[0] - up, column * window.strides[1] + tap[1] - left)
            for part in range(source.blocks):
                those = weights[block * lanes : (block + 1) * lanes, part * lanes : (part + 1) * lanes, tap[0], tap[1]]
                passes.append(Pass(model.tile(those.T), part, places))
        jobs.append(Job(block, output.position(row, column), pixels, tuple(passes)))
    return jobs


def sum_jobs(model: Model, source: Placed, output: Placed) -> list[Job]:
    """The sum over all pixels: the tile of ones on the diagonal, a pass for each pixel."""
    tile = model.tile(np.eye(model.lanes, dtype=np.int8))
    model.macs += source.channels * source.height * source.width
    places = source.inside()
    return [
        Job(
            block,
            output.inside(),
            np.arange(1),
            tuple(Pass(tile, block, place.reshape(1)) for place in places),
        )
        for block in range(output.blocks)
    ]


def pixel_jobs(output: Placed) -> list[Job]:
    """Nothing is multiplied: the vector unit computes each pixel of each block."""
    return [Job(block, output.inside(), np.arange(output.height * output.width), ()) for block in range(output.blocks)]
