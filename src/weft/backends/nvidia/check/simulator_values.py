"""Tiles as the simulator holds them, and what elementwise functions make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.nvidia.check.simulator_layouts import holding
from weft.backends.nvidia.check.simulator_memory import SimulationError
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.shared_bytes import register_bytes, row_pitch
from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile.functions import FUNCTIONS, greatest


class PoisonError(SimulationError):
    """A kernel uses an element that was never defined."""


class DisagreementError(SimulationError):
    """Threads hold different values of one element; where it is a condition, they go different ways."""


@dataclass(frozen=True, eq=False)
class Held:
    """A tile in registers: arrays [threads, registers] of values and of which are defined, and the tile's extents."""

    layout: Layout
    values: np.ndarray
    defined: np.ndarray
    extents: tuple[int, ...]


def shape(layout: Layout) -> tuple[int, int]:
    return layout.threads * layout.block_count, layout.count


def poison(dtype: DType) -> np.ndarray:
    return np.asarray(np.nan if dtype.is_float else greatest(dtype)).astype(dtype.numpy)


def in_shared_memory(dtype: DType) -> np.dtype:
    """Narrow floats are wide in registers, and in shared memory as well."""
    return np.dtype(np.float32) if dtype.is_float and register_bytes(dtype) != dtype.bytes else dtype.numpy


def row_major(layout: Layout, size: int) -> np.ndarray:
    """Where elements lie in a tile that stands in shared memory row by row, the rows a little apart."""
    result = np.zeros(shape(layout), np.int64)
    for axis, along in enumerate(holding(layout).index):
        side = layout.shape[axis]
        result = result * (row_pitch(side, size) if axis == layout.rank - 1 else side) + along
    return result


def applied(op: tile.MapOp, args: Sequence[np.ndarray]) -> np.ndarray:
    """An elementwise function, as the reference has it."""
    name = op.function.data
    function: Any = FUNCTIONS[name].numpy
    if name not in ("cast", "bitcast"):
        return np.asarray(function(*args))
    source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
    assert isinstance(source, DType) and isinstance(target, DType)
    return function(args[0].astype(source.numpy) if name == "bitcast" else args[0], target.numpy)
