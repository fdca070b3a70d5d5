"""What simulated threads have: values in registers, sizes, and global memory by places that they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.check.simulator_layouts import CoverageError, holding, picks
from weft.backends.nvidia.check.simulator_memory import GlobalMemory, SharedMemory
from weft.backends.nvidia.check.simulator_values import (
    DisagreementError,
    Held,
    PoisonError,
    poison,
    shape,
)
from weft.backends.nvidia.ir.dialect import (
    LAYOUTS,
    LayoutAttr,
)
from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode
from weft.backends.reference.tile import AccessError
from weft.errors import UnsupportedError
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, evaluate
from weft.tile import dialect as tile


@dataclass
class Registers:
    """What the threads of one program hold, and what they read and write."""

    names: Sequence[str]
    numbers: dict[Operation, int]
    program: int
    place: tuple[int, ...]
    warps: int
    blocks: int
    memories: dict[SSAValue, GlobalMemory]
    shared: SharedMemory
    indices: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    tiles: dict[SSAValue, Held] = field(default_factory=dict[SSAValue, Held])

    def barrier(self, *, of_cluster: bool = False) -> None:
        self.shared.barrier(of_cluster=of_cluster)
        for memory in self.memories.values():
            memory.barrier()

    def hold_scalar(self, argument: SSAValue, number: int | float) -> None:
        """An argument of the kernel that all threads are given."""
        layout = Layout((), (), (Mode(WARP, None),), (Mode(self.warps, None),), (Mode(self.blocks, None),))
        values = np.full(shape(layout), number)
        self.hold(argument, layout, values, np.ones(values.shape, bool), ())

    def hold(
        self, out: SSAValue, layout: Layout, values: np.ndarray, defined: np.ndarray, extents: Sequence[int]
    ) -> None:
        """Give a value its registers. Threads that hold the same element must have the same of it."""
        type_ = tile.tile_type(out)
        if (layout.shape, layout.warp_count, layout.block_count) != (type_.sizes, self.warps, self.blocks):
            size = f"{self.warps} warps and {self.blocks} blocks"
            raise CoverageError(f"{self._name(out)}: {layout} is no layout of {type_} in {size}")
        if any(extent > side for extent, side in zip(extents, layout.shape, strict=True)):
            raise AccessError(f"{self._name(out)}: {list(extents)} elements in {type_}")
        values = np.where(defined, values.astype(type_.dtype.numpy), poison(type_.dtype))
        first = holding(layout).first
        same = (values == values.reshape(-1)[first]) & (defined == defined.reshape(-1)[first])
        if type_.dtype.is_float:
            same |= np.isnan(values) & np.isnan(values.reshape(-1)[first])
        if not same.all():
            thread, register = (int(n[0]) for n in np.nonzero(~same))
            element = tuple(int(n) for n in holding(layout).index[:, thread, register])
            raise DisagreementError(f"{self._name(out)}: thread {thread} has another element {element} than others")
        self.tiles[out] = Held(layout, values, defined, tuple(extents))

    def _name(self, value: SSAValue) -> str:
        owner = value.owner
        return self.names[self.numbers[owner]] if isinstance(owner, Operation) else "an argument of a block"

    def _layout(self, op: Operation) -> Layout:
        """The first layout of an op: of its result, or of what it writes."""
        attribute = cast(Any, op.attributes[LAYOUTS]).data[0]
        assert isinstance(attribute, LayoutAttr)
        return attribute.data

    def picked(self, value: SSAValue, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """A value, broadcast, in the registers of a layout: threads take it from their own registers."""
        held = self.tiles[value]
        if held.layout == layout:
            return held.values, held.defined
        numbers = picks(layout, held.layout)
        values, defined = (np.take_along_axis(a, np.maximum(numbers, 0), 1) for a in (held.values, held.defined))
        return values, defined & (numbers >= 0)

    def _agreed(self, op: Operation, value: SSAValue) -> Any:
        """What all threads have as the one element of a tile."""
        held = self.tiles[value]
        if not held.defined.all():
            raise PoisonError(f"{self.names[self.numbers[op]]} goes by what is not defined")
        if (held.values != held.values[0, 0]).any():
            raise DisagreementError(f"threads go different ways at {self.names[self.numbers[op]]}")
        return held.values[0, 0]

    def _common(self, values: Sequence[SSAValue]) -> list[int]:
        """The extents that tiles have together; those of size 1 are broadcast."""
        tiles = [(self.tiles[value].extents, tile.tile_type(value).sizes) for value in values]
        rank = len(tiles[0][1])
        return [min((e[a] for e, sizes in tiles if sizes[a] != 1), default=1) for a in range(rank)]

    # -- sizes and places ------------------------------------------------------------------------------------------

    def _sizes(self, sizes: Sequence[Size], operands: Sequence[SSAValue]) -> list[int]:
        symbols = {f"d{i}": self.indices[operand] for i, operand in enumerate(operands)}
        return [evaluate(size, symbols) for size in sizes]

    def _extents(self, op: tile.LoadOp | tile.StoreOp | tile.PositionOp, capacities: Sequence[int]) -> list[int]:
        extents = [max(extent, 0) for extent in self._sizes(op.extents.data, op.indices)]
        return [1 if capacity == 1 else extent for capacity, extent in zip(capacities, extents, strict=True)]

    def _places(self, op: tile.LoadOp | tile.StoreOp | tile.PositionOp, layout: Layout) -> np.ndarray:
        (offset,) = self._sizes(op.offset.data, op.indices)
        places = np.full(shape(layout), offset, np.int64)
        for along, stride in zip(holding(layout).index, self._sizes(op.strides.data, op.indices), strict=True):
            places += along * stride
        return places

    # -- global memory ---------------------------------------------------------------------------------------------

    def _load(self, op: tile.LoadOp) -> None:
        layout = self._layout(op)
        extents = self._extents(op, layout.shape)
        exists = holding(layout).existing(extents)
        self.hold(op.out, layout, self._read(op, op.pointer, self._places(op, layout), exists), exists, extents)

    def _read(self, op: Operation, pointer: SSAValue, places: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        memory = self.memories[pointer]
        self._check_bounds(op, memory, places[wanted])
        values = np.zeros(places.shape, memory.array.dtype)
        threads = np.nonzero(wanted)[0]
        values[wanted] = memory.read(self.numbers[op], self._program(threads), threads, places[wanted])
        return values

    def _program(self, threads: np.ndarray) -> np.ndarray:
        """A number for each block of the grid."""
        return self.program * self.blocks + threads // (WARP * self.warps)

    def _check_bounds(self, op: Operation, memory: GlobalMemory, places: np.ndarray) -> None:
        if places.size and not 0 <= places.min() <= places.max() < memory.array.size:
            wrong = places.min() if places.min() < 0 else places.max()
            raise AccessError(f"{self.names[self.numbers[op]]}: element {wrong} of a buffer of {memory.array.size}")

    def _store(self, op: tile.StoreOp) -> None:
        layout, sizes = self._layout(op), tile.tile_type(op.value).sizes
        extents = [max(extent, 0) for extent in self._sizes(op.extents.data, op.indices)]
        own = self.tiles[op.value].extents
        extents = [e if size == 1 else min(e, n) for e, size, n in zip(extents, sizes, own, strict=True)]
        values, defined = self.picked(op.value, layout)
        self._write(op, op.pointer, self._places(op, layout), values, defined, layout, extents)

    def _write(
        self,
        op: Operation,
        pointer: SSAValue,
        places: np.ndarray,
        values: np.ndarray,
        defined: np.ndarray,
        layout: Layout,
        extents: Sequence[int],
        chosen: np.ndarray | None = None,
    ) -> None:
        """Owners write what exists and is chosen."""
        held = holding(layout)
        exists = held.existing(extents) & held.owner
        if int(exists.sum()) != int(np.prod(extents)):
            raise CoverageError(f"{self.names[self.numbers[op]]} writes {exists.sum()} elements of {list(extents)}")
        if chosen is not None:
            exists &= chosen
        if (exists & ~defined).any():
            raise PoisonError(f"{self.names[self.numbers[op]]} writes what is not defined")
        memory = self.memories[pointer]
        self._check_bounds(op, memory, places[exists])
        written_values = values[exists].astype(memory.array.dtype)
        any_order = isinstance(op, tile.ScatterOp)
        threads = np.nonzero(exists)[0]
        program = self._program(threads)
        memory.write(self.numbers[op], program, threads, places[exists], written_values, any_order=any_order)

    def _gather(self, op: tile.GatherOp) -> None:
        layout = self._layout(op)
        places, chosen, extents = self._chosen(op, op.offsets, op.mask, layout, [op.offsets])
        exists = holding(layout).existing(extents)
        values = self._read(op, op.pointer, places, chosen).astype(tile.tile_type(op.out).dtype.numpy)
        values = np.where(chosen, values, cast(Any, from_attribute(op.other)))
        self.hold(op.out, layout, values, exists, extents)

    def _scatter(self, op: tile.ScatterOp) -> None:
        if op.unordered is None or op.kind.data != "assign":
            raise UnsupportedError(f"{self.names[self.numbers[op]]}: threads write in no order")
        layout = self._layout(op)
        places, chosen, extents = self._chosen(op, op.offsets, op.mask, layout, [op.value, op.offsets])
        values, defined = self.picked(op.value, layout)
        self._write(op, op.pointer, places, values, defined, layout, extents, chosen)

    def _chosen(
        self,
        op: Operation,
        offsets: SSAValue,
        mask: SSAValue | None,
        layout: Layout,
        values: Sequence[SSAValue],
    ) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Computed places, where they exist and a mask is true, and the extents of it all."""
        extents = self._common([*values, *([] if mask is None else [mask])])
        exists = holding(layout).existing(extents)
        places, defined = self.picked(offsets, layout)
        chosen = exists
        if mask is not None:
            true, known = self.picked(mask, layout)
            if (exists & ~known).any():
                raise PoisonError(f"{self.names[self.numbers[op]]} has a mask that is not defined")
            chosen = exists & true
        if (chosen & ~defined).any():
            raise PoisonError(f"{self.names[self.numbers[op]]} goes to a place that is not defined")
        return places.astype(np.int64), chosen, extents
