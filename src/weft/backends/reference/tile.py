"""Runs a tile kernel on NumPy arrays, program by program: the meaning of the tile dialect.

A tile is an array clipped to its extents. Constants and the tiles that loops carry have their full capacity, and are
clipped where they meet smaller ones; what a carried tile was never given is poison, so that a kernel that uses it
shows. Every access is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.backends.reference.written import run_written
from weft.errors import WeftError
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, evaluate
from weft.ir.types import DType, dtype_of_numpy
from weft.ops.matmul.quantized import dequantized
from weft.ops.numerics import NARROW
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS, FUNCTIONS, greatest


class AccessError(WeftError):
    """A kernel read or wrote outside a buffer, or a tile beyond its capacity."""


def run_kernel(kernel: tile.KernelOp, buffers: Sequence[np.ndarray], sizes: Sequence[int | float]) -> None:
    """Run all programs of a kernel, one after the other.

    `buffers` are flat arrays, one for each pointer; `sizes` are the values of the other arguments: scalars and symbols.
    """
    pointers = [arg for arg in kernel.block.args if isinstance(arg.type, tile.PointerType)]
    scalars = [arg for arg in kernel.block.args if arg not in pointers]
    if (len(pointers), len(scalars)) != (len(buffers), len(sizes)):
        raise AccessError(
            f"{kernel.sym_name.data} takes {len(pointers)} buffers and {len(scalars)} sizes, "
            f"got {len(buffers)} and {len(sizes)}"
        )
    for pointer, buffer in zip(pointers, buffers, strict=True):
        expected = _pointer_dtype(pointer).numpy
        if buffer.ndim != 1 or buffer.dtype != expected:
            raise AccessError(
                f"{kernel.sym_name.data} takes flat arrays of {expected}, got {buffer.dtype}{buffer.shape}"
            )
    names = (
        cast(tuple[str, ...], from_attribute(kernel.attributes["symbols"])) if "symbols" in kernel.attributes else ()
    )
    symbols = dict(zip(names, map(int, sizes[len(sizes) - len(names) :]), strict=True))
    grid = [max(evaluate(size, symbols), 0) for size in kernel.grid.data]
    if kernel.limit_pointer is not None:
        grid[-1] = min(grid[-1], int(buffers[pointers.index(kernel.limit_pointer)][0]))
    with np.errstate(all="ignore"):
        for numbers in np.ndindex(*grid):
            program = ProgramInstance(kernel.sym_name.data, numbers, dict(zip(pointers, buffers, strict=True)))
            for scalar, number in zip(scalars, sizes, strict=True):
                if isinstance(scalar.type, tile.TileType):
                    program.tiles[scalar] = np.asarray(number, scalar.type.dtype.numpy)
                else:
                    program.indices[scalar] = int(number)
            program.block(list(kernel.block.ops))


def _pointer_dtype(pointer: SSAValue) -> DType:
    assert isinstance(pointer.type, tile.PointerType)
    return pointer.type.dtype


@dataclass
class ProgramInstance:
    """One program: what its values are."""

    kernel: str
    numbers: tuple[int, ...]
    buffers: dict[SSAValue, np.ndarray]
    indices: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    tiles: dict[SSAValue, np.ndarray] = field(default_factory=dict[SSAValue, np.ndarray])

    def block(self, operations: Sequence[Operation]) -> None:
        for op in operations:
            self.run(op)

    def run(self, op: Operation) -> None:
        match op:
            case tile.ProgramOp():
                self.indices[op.out] = self.numbers[op.axis.value.data]
            case tile.NumberOp():
                places = np.asarray(self._sizes(op.offset.data, op.indices))
                number = int(self.buffers[op.pointer][self.checked(op, op.pointer, places)][0])
                self.indices[op.out] = max(-op.MOST, min(number, op.MOST)) - op.LEAST
            case tile.ConstantOp():
                self.set(op.out, np.full(tile.tile_type(op.out).sizes, cast(Any, from_attribute(op.value))))
            case tile.LoadOp():
                extents = self._extents(op, tile.tile_type(op.out).sizes)
                self.set(op.out, self.buffers[op.pointer][self._loaded(op, extents)])
            case tile.PositionOp():
                self.set(op.out, self._positions(op, self._extents(op, tile.tile_type(op.out).sizes)))
            case tile.StoreOp():
                self._store(op)
            case tile.GatherOp():
                self._gather(op)
            case tile.ScatterOp():
                self._scatter(op)
            case tile.MapOp():
                self.set(op.out, self.apply(op, self._aligned(op.args)))
            case tile.ReduceOp():
                self.set(op.out, _reduced(self.tiles[op.value], op.kind.data, op.axis.value.data))
            case tile.AddExponentialsOp():
                pair = _with_exponentials(*(self.tiles[operand] for operand in op.operands))
                for out, value in zip(op.results, pair, strict=True):
                    self.set(out, value)
            case tile.DotOp():
                self._dot(op)
            case tile.DequantizeOp():
                self._dequantize(op)
            case tile.SortOp():
                self._sort(op)
            case tile.ForOp():
                self._loop(op)
            case tile.ReturnOp() | tile.YieldOp():
                pass
            case _:
                run_written(self, op)

    def set(self, out: SSAValue, value: np.ndarray) -> None:
        type_ = tile.tile_type(out)
        if value.ndim != len(type_.sizes) or any(n > c for n, c in zip(value.shape, type_.sizes, strict=True)):
            raise AccessError(f"{out.owner.name} of {self.kernel}: {value.shape} elements in {type_}")  # type: ignore[union-attr]
        self.tiles[out] = value.astype(type_.dtype.numpy)

    def apply(self, op: tile.MapOp, args: Sequence[np.ndarray]) -> np.ndarray:
        """An elementwise function of arrays."""
        name = op.function.data
        function: Callable[..., np.ndarray] = FUNCTIONS[name].numpy
        if name not in ("cast", "bitcast"):
            return np.asarray(function(*args))
        source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
        assert isinstance(source, DType) and isinstance(target, DType)
        # Registers hold narrow floats as f32: their bits are those of the narrow type.
        value = args[0].astype(source.numpy) if name == "bitcast" else args[0]
        return function(value, target.numpy)

    # -- tiles of several operands ---------------------------------------------------------------------------------

    def _aligned(self, values: Sequence[SSAValue]) -> list[np.ndarray]:
        """Operands clipped to the elements that all of them have. An axis of capacity 1 broadcasts, a short one not."""
        arrays = [self.tiles[value] for value in values]
        capacities = [tile.tile_type(value).sizes for value in values]
        pairs = list(zip(arrays, capacities, strict=True))
        common = [min((a.shape[axis] for a, c in pairs if c[axis] != 1), default=1) for axis in range(arrays[0].ndim)]
        return [_clipped(a, [min(n, e) for n, e in zip(c, common, strict=True)]) for a, c in pairs]

    def _masked(self, values: Sequence[SSAValue], mask: SSAValue | None) -> tuple[list[np.ndarray], np.ndarray]:
        """Operands of one shape, and where the mask is true."""
        if mask is None:
            arrays = list(np.broadcast_arrays(*self._aligned(values)))
            return arrays, np.ones(arrays[0].shape, bool)
        *arrays, chosen = np.broadcast_arrays(*self._aligned([*values, mask]))
        return arrays, chosen

    # -- sizes and places ------------------------------------------------------------------------------------------

    def _sizes(self, sizes: Sequence[Size], operands: Sequence[SSAValue]) -> list[int]:
        symbols = {f"d{i}": self.indices[operand] for i, operand in enumerate(operands)}
        return [evaluate(size, symbols) for size in sizes]

    def _extents(self, op: tile.LoadOp | tile.StoreOp | tile.PositionOp, capacities: Sequence[int]) -> list[int]:
        """How many elements an access has along each axis."""
        extents = [max(extent, 0) for extent in self._sizes(op.extents.data, op.indices)]
        return [1 if capacity == 1 else extent for capacity, extent in zip(capacities, extents, strict=True)]

    def _positions(self, op: tile.LoadOp | tile.StoreOp | tile.PositionOp, extents: Sequence[int]) -> np.ndarray:
        offset, *_ = self._sizes(op.offset.data, op.indices)
        places = np.full(extents, offset, np.int64)
        for axis, stride in enumerate(self._sizes(op.strides.data, op.indices)):
            steps = stride * np.arange(extents[axis], dtype=np.int64)
            places += steps.reshape([-1 if a == axis else 1 for a in range(len(extents))])
        return places

    def _places(self, op: tile.LoadOp | tile.StoreOp, extents: Sequence[int]) -> np.ndarray:
        return self.checked(op, op.pointer, self._positions(op, extents))

    def _loaded(self, op: tile.LoadOp, extents: Sequence[int]) -> np.ndarray:
        """The places of all pieces of a load, most of the time one."""
        if op.piece_axis is None:
            return self._places(op, extents)
        along = op.piece_axis.value.data
        own = [size // op.pieces if axis == along else size for axis, size in enumerate(extents)]
        first, *_ = offsets = self._sizes(op.offset.data, op.indices)
        places = self._positions(op, own)
        pieces = [places + offset - first for offset in offsets]
        return self.checked(op, op.pointer, np.concatenate(pieces, axis=along))

    def checked(self, op: Operation, pointer: SSAValue, places: np.ndarray) -> np.ndarray:
        size = self.buffers[pointer].size
        if places.size and not 0 <= places.min() <= places.max() < size:
            wrong = places.min() if places.min() < 0 else places.max()
            raise AccessError(
                f"{op.name} of {self.kernel}, program {self.numbers}: element {wrong} of a buffer of {size}",
                hint=f"the op is {str(op).strip()}",
            )
        return places

    # -- memory ----------------------------------------------------------------------------------------------------

    def _store(self, op: tile.StoreOp) -> None:
        value, capacities = self.tiles[op.value], tile.tile_type(op.value).sizes
        # A value of capacity 1 is spread over all that the store covers.
        extents = [max(extent, 0) for extent in self._sizes(op.extents.data, op.indices)]
        extents = [e if c == 1 else min(e, n) for e, c, n in zip(extents, capacities, value.shape, strict=True)]
        places = self._places(op, extents)
        clipped = _clipped(value, [1 if c == 1 else e for c, e in zip(capacities, extents, strict=True)])
        self.buffers[op.pointer][places] = _to_memory(np.broadcast_to(clipped, extents), _pointer_dtype(op.pointer))

    def _gather(self, op: tile.GatherOp) -> None:
        (offsets,), chosen = self._masked([op.offsets], op.mask)
        buffer = self.buffers[op.pointer]
        register = tile.tile_type(op.out).dtype.numpy
        value = np.full(offsets.shape, cast(Any, from_attribute(op.other))).astype(register)
        value[chosen] = buffer[self.checked(op, op.pointer, offsets[chosen])].astype(register)
        self.set(op.out, value)

    def _scatter(self, op: tile.ScatterOp) -> None:
        (value, offsets), chosen = self._masked([op.value, op.offsets], op.mask)
        places, updates = self.checked(op, op.pointer, offsets[chosen]), value[chosen]
        buffer, dtype = self.buffers[op.pointer], _pointer_dtype(op.pointer)
        if op.kind.data == "assign":
            for place, update in zip(places, _to_memory(updates, dtype), strict=True):
                buffer[place] = update
            return
        combine = FUNCTIONS[op.kind.data].numpy
        for place, update in zip(places, updates, strict=True):
            old = buffer[place : place + 1].astype(updates.dtype)
            buffer[place : place + 1] = _to_memory(combine(old, np.asarray([update])), dtype)

    # -- structured ops --------------------------------------------------------------------------------------------

    def _dequantize(self, op: tile.DequantizeOp) -> None:
        codes, scales, zeros = (*(self.tiles[operand].T for operand in op.operands), None, None)[:3]
        dtype = from_attribute(op.dtype)
        assert isinstance(dtype, DType) and codes is not None
        values = dequantized(codes, scales, zeros, op.form.data, op.group.value.data)
        self.set(op.out, values.T.astype(dtype.numpy))

    def _dot(self, op: tile.DotOp) -> None:
        a, b = self.tiles[op.a], self.tiles[op.b]
        type_ = tile.tile_type(op.out)
        if b.ndim == 4:  # neighbours along K lie together
            b = np.swapaxes(b, 2, 3).reshape(b.shape[0], -1, b.shape[2])
        if b.ndim == 3:  # panels side by side, the last one filled up
            b = np.moveaxis(b, 1, 0).reshape(b.shape[1], -1)[:, : type_.sizes[1]]
        depth = min(a.shape[1], b.shape[0])
        register = type_.dtype.numpy
        product = np.matmul(a[:, :depth].astype(register), b[:depth].astype(register))
        if op.accumulator is not None:
            product = product + _clipped(self.tiles[op.accumulator], product.shape)
        self.set(op.out, product)

    def _sort(self, op: tile.SortOp) -> None:
        start, count, first = self._sizes((*op.offset.data, *op.count.data, *op.first.data), op.indices)
        places = np.arange(start, start + max(count, 0))
        for pointer in (op.keys, op.positions, op.scratch_keys, op.scratch_positions):
            self.checked(op, pointer, places)
        keys, positions = self.buffers[op.keys], self.buffers[op.positions]
        values = keys[places]
        # Ranks instead of values: the same rank for equal ones keeps a descending sort stable; NaN is the greatest.
        ranks = np.unique(values.astype(np.float32) if values.dtype in NARROW else values, return_inverse=True)[1]
        order = np.argsort(-ranks if from_attribute(op.descending) else ranks, kind="stable")[:first]
        keys[places] = _poison(values.shape, _pointer_dtype(op.keys))
        positions[places] = -1
        keys[places[:first]], positions[places[:first]] = values[order], order

    def _loop(self, op: tile.ForOp) -> None:
        carried = op.block.args[1:]
        slots = [_poison(t.sizes, t.dtype) for t in map(tile.tile_type, carried)]
        _refill(slots, [self.tiles[value] for value in op.initial])
        lower, upper, step = self._sizes(op.bounds.data, op.indices)
        operations = list(op.block.ops)
        yielded = operations[-1]
        for turn in range(lower, upper, step):
            self.indices[op.block.args[0]] = turn
            self.tiles.update((value, slot.copy()) for value, slot in zip(carried, slots, strict=True))
            self.block(operations)
            _refill(slots, [self.tiles[value] for value in yielded.operands])
        self.tiles.update(zip(op.results, slots, strict=True))


def _clipped(array: np.ndarray, extents: Sequence[int]) -> np.ndarray:
    return array[tuple(slice(extent) for extent in extents)]


def _to_memory(value: np.ndarray, dtype: DType) -> np.ndarray:
    return value.astype(dtype.numpy)


def _with_exponentials(largest: np.ndarray, total: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Element i goes to pair i modulo their number; from an infinite maximum sums are seen from 0."""
    count = len(largest)
    padded = np.full(-(-len(value) // count) * count, -np.inf, value.dtype)
    padded[: len(value)] = value
    rows = padded.reshape(-1, count)
    larger = np.maximum(largest, rows.max(0, initial=-np.inf))
    base = np.where(np.isinf(larger), 0, larger)
    return larger, total * np.exp(largest - base) + np.exp(rows - base).sum(0)


def _reduced(value: np.ndarray, kind: str, axis: int) -> np.ndarray:
    """Combine along an axis that stays with size 1; of nothing comes the combiner's identity, or the position -1."""
    combiner = COMBINERS[kind]
    if value.shape[axis]:
        return combiner.reduce(value, axis, keepdims=True)
    shape = [1 if a == axis else n for a, n in enumerate(value.shape)]
    if combiner.indexed:
        return np.full(shape, -1, np.int64)
    return np.full(shape, combiner.identity(dtype_of_numpy(value.dtype))).astype(value.dtype)


def _poison(shape: Sequence[int], dtype: DType) -> np.ndarray:
    return np.full(shape, np.nan if dtype.is_float else greatest(dtype)).astype(dtype.numpy)


def _refill(slots: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
    """Write tiles to carried ones; a smaller one leaves the rest as it was."""
    for slot, value in zip(slots, values, strict=True):
        slot[tuple(slice(n) for n in value.shape)] = value
