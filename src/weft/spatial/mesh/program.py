"""A schedule for a mesh of cores: which tile travels when over which links, and which core computes what when.

A tile is a square of a matrix: a tensor's number, and the tile's row and column in it. This is all that the verifier
and the simulator read. How long anything takes they compute from the description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from weft.spatial.isa import Function
from weft.spatial.mesh_machine import MeshMachine


class Tile(NamedTuple):
    tensor: int
    row: int
    column: int


class Hop(NamedTuple):
    """A link that a tile passes: from one core to the next, on a network, and how many links come before it."""

    source: int
    target: int
    before: int


@dataclass(frozen=True)
class Transfer:
    """A tile on its way to several cores at once: it enters the network in a cycle, and all branches move along."""

    tile: Tile
    source: int
    network: int
    cycle: int
    hops: tuple[Hop, ...]
    targets: tuple[int, ...]
    origin: int


@dataclass(frozen=True)
class Multiply:
    """A tile times resident weights, on a core's matrix unit; added to what the core has of the result, or first."""

    core: int
    cycle: int
    tile: Tile
    weights: int
    into: Tile
    adds: bool
    origin: int


class Source(IntEnum):
    """What an operand of the vector unit is."""

    TILE = 0
    SUMS = 1
    CONSTANT = 2
    STEP = 3


Operand = tuple[Source, Tile | int]
"""A tile in memory, the sums of the result's tile, a constant or an earlier step, by its number."""


@dataclass(frozen=True)
class Compute:
    """A step of an expression on a core's vector unit; the last one makes the tile."""

    core: int
    cycle: int
    function: Function
    operands: tuple[Operand, ...]
    into: Tile
    step: int
    last: bool
    origin: int


@dataclass(frozen=True)
class MeshTensor:
    """A matrix as tiles, and the core that has each of them."""

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[np.generic]
    owners: Mapping[Tile, int]
    data: np.ndarray | None = None
    """What it holds from the start, where it is a constant."""


@dataclass(frozen=True)
class MeshProgram:
    """A schedule, and what was predicted of it."""

    machine: MeshMachine
    transfers: Sequence[Transfer]
    multiplies: Sequence[Multiply]
    computes: Sequence[Compute]
    tensors: Sequence[MeshTensor]
    weights: Sequence[np.ndarray]
    constants: Sequence[np.ndarray]
    """A row of numbers in f32, for a column of tiles."""
    terms: Mapping[tuple[int, int], tuple[tuple[int, int, int], ...]]
    """What is summed up, for a tensor and a column of its tiles: a tensor, a column of its tiles, and weights, each."""
    inputs: Sequence[int]
    outputs: Sequence[int]
    origins: Sequence[str]
    cycles: int
    bounds: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def resident(self) -> set[tuple[int, int]]:
        """The weights of each core: its number, and that of the tile."""
        return {(each.core, each.weights) for each in self.multiplies}
