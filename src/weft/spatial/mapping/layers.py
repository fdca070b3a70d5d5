"""Layers: a product on the matrix units, an expression on the vector unit, and the tensor that is written.

A layer is the unit of scheduling. Its work is stated as jobs: rows of output, and for each of them the passes over
input rows that are multiplied by a tile of weights and added up. Matrix products, convolutions and sums over pixels are
all lists of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, TypeAlias

import numpy as np

from weft.spatial.isa import Function
from weft.spatial.mapping.packing import Packing, plain

RESIDUES = 4
"""Vectors of a tensor lie in turn in so many slices, so that as many can be written in a cycle."""


@dataclass
class Placed:
    """A tensor in memory: lines of vectors, a vector for each pixel and each block of channels.

    Around the lines is a border that is read as padding. A matrix [M, K] is an image of one row, M pixels wide. Where
    channels are few, a line may have the pixels of several rows: see `packing`.
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
    first_copy: int = 0
    split: np.ndarray | None = field(default=None, compare=False)
    """The address of each word, where a tensor is in two banks of some copies."""
    order: np.ndarray | None = field(default=None, compare=False)
    """The channel that each lane holds, -1 for none, over all blocks; without it channels follow each other."""
    within: Placed | None = field(default=None, compare=False)
    """A tensor that this one is a part of: its vectors from `shift` on, of its blocks from `first_block` on."""
    shift: int = 0
    first_block: int = 0
    data: np.ndarray | None = field(default=None, compare=False)
    """What it holds from the start, where it is a constant: an element for each pixel and channel."""
    packing: Packing = field(init=False)

    def __post_init__(self) -> None:
        self.packing = plain(self.height)

    @property
    def lines(self) -> int:
        return self.packing.lines

    @property
    def pitch(self) -> int:
        """Vectors from a line to the next: the next vector lies in the next slice, across lines too."""
        return self.width + -(-2 * self.border // RESIDUES) * RESIDUES

    @property
    def pixels(self) -> int:
        """The vectors of a block, the border included."""
        return (self.lines + 2 * self.border) * self.pitch

    @property
    def blocks(self) -> int:
        held = self.channels if self.order is None else len(self.order)
        return -(-held // self.lanes)

    @property
    def root(self) -> Placed:
        """The tensor that has memory of its own: this one, or the one it is a part of."""
        return self if self.within is None else self.within

    def arranged(self, values: np.ndarray, axis: int = 0) -> np.ndarray:
        """What belongs to channels in the order of lanes, zero where a lane holds none."""
        if self.order is None:
            return values
        kept = np.take(values, np.maximum(self.order, 0), axis=axis)
        shape = [1] * kept.ndim
        shape[axis] = -1
        return np.where((self.order >= 0).reshape(shape), kept, kept.dtype.type(0))

    @property
    def words(self) -> int:
        """Words of each of its slices."""
        return self.blocks * -(-self.pixels // RESIDUES)

    def position(self, line: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The place of vectors in a block, the border included."""
        return (line + self.border) * self.pitch + column + self.border

    def inside(self) -> np.ndarray:
        """The places of the image's own vectors, in order."""
        line, column = np.divmod(np.arange(self.lines * self.width), self.width)
        return self.position(line, column)

    def row(self, line: int, slot: int) -> int | None:
        """The row that a slot holds; None where it has no meaning, in a line of the border."""
        row = self.packing.row(line, slot)
        stored = 0 <= line < self.lines
        return row if stored or not 0 <= row < self.height else None

    def padded_slots(self, line: int) -> tuple[int, ...]:
        """The slots of a line whose rows are outside of the image."""
        return tuple(s for s in range(self.packing.slots) if not 0 <= self.packing.row(line, s) < self.height)

    def residue(self, block: np.ndarray | int, positions: np.ndarray) -> np.ndarray:
        return (positions + self.shift + 2 * (block + self.first_block)) % RESIDUES

    def address(self, block: np.ndarray | int, positions: np.ndarray) -> np.ndarray:
        word = self.word(block, positions)
        return self.root.base + word if self.root.split is None else self.root.split[word]

    def word(self, block: np.ndarray | int, positions: np.ndarray) -> np.ndarray:
        """Which word of its slices a vector has."""
        first = (block + self.first_block) * -(-self.root.pixels // RESIDUES)
        return first + (positions + self.shift) // RESIDUES

    def tags(self, block: np.ndarray | int, positions: np.ndarray) -> np.ndarray:
        return self.root.tag + (block + self.first_block) * self.root.pixels + positions + self.shift


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
class Window:
    """A kernel's size, its steps, and the padding before and after each side."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Convolution:
    """A product by weights [N, C, rows, columns]; a matrix product is one of a single row and column."""

    weights: np.ndarray
    window: Window


@dataclass(frozen=True)
class PixelSum:
    """The sum over all pixels."""


@dataclass(frozen=True)
class TensorTile:
    """Weights that are vectors of a tensor: rows of a tile or its columns, and of each the lanes of some tiles."""

    tensor: Placed = field(compare=False)
    number: int
    block: int
    first: int
    count: int
    columns: bool
    first_tile: int
    tiles: int


@dataclass(frozen=True)
class BlockProduct:
    """For each block of the output, what adds up to it: blocks of the source, each by a tile; all rows alike."""

    passes: tuple[tuple[tuple[int, np.ndarray | TensorTile], ...], ...]
    macs: int

    @property
    def tensors(self) -> list[Placed]:
        """The tensors that tiles are loaded from."""
        tiles = [tile for block in self.passes for _, tile in block if isinstance(tile, TensorTile)]
        return list({tile.number: tile.tensor for tile in tiles}.values())


@dataclass(frozen=True)
class Pass:
    """Input rows that are multiplied by a tile of weights."""

    tile: int | TensorTile
    block: int
    positions: np.ndarray


@dataclass(frozen=True)
class Job:
    """Rows of output of one block, and the passes whose sum they are; none where nothing is multiplied."""

    block: int
    positions: np.ndarray
    pixels: np.ndarray
    """Which vector of the output each row is, in order."""
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Layer:
    """What is scheduled at once."""

    origin: int
    source: Placed | None
    """What is multiplied; None where nothing is."""
    output: Placed
    root: Node
    product: Convolution | PixelSum | BlockProduct | None = None
    """What the mapping makes jobs of; the scheduler sees the jobs."""
    jobs: tuple[Job, ...] = ()
    loaded: tuple[Placed, ...] = ()
    chips: tuple[int, ...] = ()
    """The chips that compute it, each all of it, where the graph says so."""

    @property
    def tile_tensors(self) -> list[Placed]:
        """The tensors that weights are loaded from while the layer runs."""
        return list(self.loaded)


@dataclass
class Model:
    """A whole graph as layers, with the tiles of weights they use."""

    lanes: int
    origins: list[str] = field(default_factory=list[str])
    tensors: list[Placed] = field(default_factory=list[Placed])
    layers: list[Layer] = field(default_factory=list[Layer])
    tiles: list[np.ndarray] = field(default_factory=list[np.ndarray])
    inputs: list[Placed] = field(default_factory=list[Placed])
    constants: list[Placed] = field(default_factory=list[Placed])
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
        key = blake2b(padded.data, digest_size=16).digest()
        if key not in self._known:
            self._known[key] = len(self.tiles)
            self.tiles.append(padded)
        return self._known[key]
