"""Descriptions of meshes of cores: each core has its memory, a matrix and a vector unit; a network joins neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from weft.spatial.facts import Description


@dataclass(frozen=True)
class Grid:
    rows: int
    columns: int


@dataclass(frozen=True)
class Core:
    memory_bytes: int
    tile: int
    """Rows and columns of the tiles that all units work on."""
    int8_macs: int
    """Products of 8-bit integers a cycle."""
    vector_lanes: int


@dataclass(frozen=True)
class Network:
    """`count` networks, each a torus: the first goes east and south, the second west and north, and so on."""

    count: int
    link_bytes: int
    """Bytes a cycle through a link."""
    hop_cycles: int


@dataclass(frozen=True)
class CoreLatency:
    """Cycles until what a unit has made, or the network has brought, can be used."""

    inject: int
    receive: int
    matrix: int
    vector: int


@dataclass(frozen=True)
class MeshMachine(Description):
    """A grid of cores on torus networks."""

    KIND: ClassVar[str] = "mesh"
    grid: Grid
    core: Core
    network: Network
    latency: CoreLatency

    @property
    def cores(self) -> int:
        return self.grid.rows * self.grid.columns

    @property
    def int8_macs(self) -> int:
        """Products of 8-bit integers a cycle, on all cores."""
        return self.cores * self.core.int8_macs

    @property
    def memory_bytes(self) -> int:
        return self.cores * self.core.memory_bytes

    @property
    def matrix_cycles(self) -> int:
        """Cycles of a tile times a tile."""
        return ceil(self.core.tile**3 / self.core.int8_macs)

    @property
    def vector_cycles(self) -> int:
        """Cycles of an operation on a tile."""
        return ceil(self.core.tile**2 / self.core.vector_lanes)

    def link_cycles(self, itemsize: int) -> int:
        """Cycles in which a tile passes a link."""
        return ceil(self.core.tile**2 * itemsize / self.network.link_bytes)
