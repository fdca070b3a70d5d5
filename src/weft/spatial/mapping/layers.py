"""Layers: a product on the matrix units, an expression on the vector unit, and the tensor that is written.

A layer is the unit of scheduling. Its work is stated as jobs: rows of output, and for each of them the passes over
input rows that are multiplied by a tile of weights and added up. Matrix products, convolutions and sums over pixels are
all lists of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from weft.spatial.isa import Function

RESIDUES = 4
"""Vectors of a tensor lie in turn in so many slices, so that as many can be written in a cycle."""


@dataclass
class Placed:
    """A tensor in memory: an image of pixels, a vector for each pixel and each block of channels.

    Around the image is a border that is read as padding. A matrix [M, K] is an image of one row, M pixels wide.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    height: int
    width: int
    channels: int
    lanes: int
    border: int = 0
    fill: int = 0
    number: int = 0
    half: int = 0
    bank: int = 0
    base: int = 0
    tag: int = 0

    @property
    def pitch(self) -> int:
        """Pixels from a row to the next: the next pixel lies in the next slice, across rows too."""
        return self.width + -(-2 * self.border // RESIDUES) * RESIDUES

    @property
    def pixels(self) -> int:
        return (self.height + 2 * self.border) * self.pitch

    @property
    def blocks(self) -> int:
        return -(-self.channels // self.lanes)

    @property
    def words(self) -> int:
        """Words of each of its slices."""
        return self.blocks * -(-self.pixels // RESIDUES)

    def position(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The place of pixels in a block, the border included."""
        return (row + self.border) * self.pitch + column + self.border

    def inside(self) -> np.ndarray:
        """The places of the image's own pixels, in order."""
        row, column = np.divmod(np.arange(self.height * self.width), self.width)
        return self.position(row, column)

    def residue(self, block: int, positions: np.ndarray) -> np.ndarray:
        return (positions + 2 * block) % RESIDUES

    def address(self, block: int, positions: np.ndarray) -> np.ndarray:
        return self.base + block * -(-self.pixels // RESIDUES) + positions // RESIDUES

    def tags(self, block: int, positions: np.ndarray) -> np.ndarray:
        return self.tag + block * self.pixels + positions


@dataclass(frozen=True)
class Constant:
    """A number for each channel, in f32."""

    values: np.ndarray


@dataclass(frozen=True)
class Stream:
    """A tensor that is read beside the product; with a window, one of its pixels around the output's."""

    tensor: Placed
    offset: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)


Operand: TypeAlias = "Node | Constant | Stream | Literal['product']"


@dataclass(frozen=True)
class Node:
    """An operation of the vector unit."""

    function: Function
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Pass:
    """Input rows that are multiplied by a tile of weights."""

    tile: int
    block: int
    positions: np.ndarray


@dataclass(frozen=True)
class Job:
    """Rows of output of one block, and the passes whose sum they are; none where nothing is multiplied."""

    block: int
    positions: np.ndarray
    pixels: np.ndarray
    """Which pixel of the output each row is, in order."""
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Layer:
    """What is scheduled at once."""

    origin: int
    source: Placed | None
    """What is multiplied; None where nothing is."""
    output: Placed
    root: Node
    jobs: tuple[Job, ...]


@dataclass
class Model:
    """A whole graph as layers, with the tiles of weights they use."""

    lanes: int
    origins: list[str] = field(default_factory=list[str])
    tensors: list[Placed] = field(default_factory=list[Placed])
    layers: list[Layer] = field(default_factory=list[Layer])
    tiles: list[np.ndarray] = field(default_factory=list[np.ndarray])
    inputs: list[Placed] = field(default_factory=list[Placed])
    outputs: list[Placed] = field(default_factory=list[Placed])
    macs: int = 0
    _known: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], image: tuple[int, int, int]
    ) -> Placed:
        height, width, channels = image
        made = Placed(name, shape, dtype, height, width, channels, self.lanes, number=len(self.tensors))
        self.tensors.append(made)
        return made

    def tile(self, weights: np.ndarray) -> int:
        """The number of a tile [K, N], padded with zeros to the plane."""
        padded = np.zeros((self.lanes, self.lanes), np.int8)
        padded[: weights.shape[0], : weights.shape[1]] = weights
        key = padded.tobytes()
        if key not in self._known:
            self._known[key] = len(self.tiles)
            self.tiles.append(padded)
        return self._known[key]
