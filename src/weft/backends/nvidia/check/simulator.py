"""Runs annotated kernels on NumPy as a block of threads does: every tile is registers of threads, as its layout says.

    tile kernel → annotated kernel → LLVM IR
                          └→ here: results, and what would go wrong on a GPU without being seen

Beside the layouts it reads only the annotated kernel, and shares nothing with what emits code for it but what loops
keep of tiles: the rest is taken to be undefined. It raises errors where threads race for memory, where an element is
not covered or written twice, where threads that hold the same element disagree, where shared memory is not enough, and
where something is written that was never defined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.check.simulator_exponentials import simulate_moments, simulate_online_softmax
from weft.backends.nvidia.check.simulator_layouts import holding, reduced_registers
from weft.backends.nvidia.check.simulator_memory import GlobalMemory, SharedMemory
from weft.backends.nvidia.check.simulator_mma import dequantize_registers, multiply_fragments
from weft.backends.nvidia.check.simulator_reduce import (
    Pairs,
    combine_blocks,
    combine_lanes,
    combine_registers,
    combine_warps,
)
from weft.backends.nvidia.check.simulator_registers import Registers
from weft.backends.nvidia.check.simulator_values import (
    Held,
    applied,
    in_shared_memory,
    row_major,
    shape,
)
from weft.backends.nvidia.ir.carried_tiles import kept_axes
from weft.backends.nvidia.ir.dialect import (
    BLOCKS,
    SHARED,
    WARPS,
    BarrierOp,
    ConvertOp,
    integer,
    layout_of,
)
from weft.backends.nvidia.ir.extents import ConvertedLimits
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.mma import MmaOp, PackOp, SqueezeOp
from weft.errors import UnsupportedError
from weft.ir.attributes import from_attribute
from weft.ir.expr import evaluate
from weft.ir.types import dtype_of_numpy
from weft.tile import control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS, Combiner


def simulate(
    kernel: tile.KernelOp, buffers: Sequence[np.ndarray], sizes: Sequence[int | float], shared_bytes: int
) -> None:
    """Run all programs of an annotated kernel; buffers and sizes are those of the reference's `run_kernel`."""
    arguments = list(kernel.block.args)
    pointers = [arg for arg in arguments if isinstance(arg.type, tile.PointerType)]
    others = [arg for arg in arguments if arg not in pointers]
    symbols = dict(zip(kernel.size_names, map(int, sizes[len(sizes) - len(kernel.size_names) :]), strict=True))
    grid = [max(evaluate(size, symbols), 0) for size in kernel.grid.data]
    operations = list(kernel.walk())
    names = [f"{op.name} (op {number} of {kernel.sym_name.data})" for number, op in enumerate(operations)]
    numbers = {op: number for number, op in enumerate(operations)}
    warps, blocks, serial = integer(kernel, WARPS), integer(kernel, BLOCKS, 1), kernel.serial is not None
    limits, loops = ConvertedLimits(), [op for op in operations if isinstance(op, tile.ForOp)]
    kept = {op: [kept_axes(op, number, limits) for number in range(len(op.results))] for op in loops}
    memories: dict[int, GlobalMemory] = {}
    for array in buffers:  # one array may be an input and an output
        memories.setdefault(array.ctypes.data, GlobalMemory(array, names, serial=serial))
    held: dict[SSAValue, GlobalMemory] = {
        pointer: memories[array.ctypes.data] for pointer, array in zip(pointers, buffers, strict=True)
    }
    with np.errstate(all="ignore"):
        for program, place in enumerate(np.ndindex(*grid)):
            shared = SharedMemory(shared_bytes, names, WARP * warps, blocks)
            block = _Block(names, numbers, program, place, warps, blocks, held, shared, kept=kept)
            for argument, number in zip(others, sizes, strict=True):
                if isinstance(argument.type, tile.TileType):
                    block.hold_scalar(argument, number)
                else:
                    block.indices[argument] = int(number)
            block.run(list(kernel.block.ops))
            block.barrier()


@dataclass
class _Block(Registers):
    """The threads of one program: of a block, or of a cluster of blocks, one after the other."""

    kept: Mapping[tile.ForOp, Sequence[Collection[int]]] = field(default_factory=dict[tile.ForOp, Any])
    """Along which axes of its tiles a loop keeps what an iteration lacks."""

    def run(self, operations: Sequence[Operation]) -> None:
        for op in operations:
            self.visit(op)

    def visit(self, op: Operation) -> None:
        match op:
            case tile.ProgramOp():
                self.indices[op.out] = self.place[op.axis.value.data]
            case tile.ConstantOp():
                layout = self._layout(op)
                values = np.full(shape(layout), cast(Any, from_attribute(op.value)))
                self.hold(op.out, layout, values, holding(layout).inside, layout.shape)
            case tile.PositionOp():
                layout = self._layout(op)
                extents = self._extents(op, layout.shape)
                self.hold(op.out, layout, self._places(op, layout), holding(layout).existing(extents), extents)
            case tile.LoadOp():
                self._load(op)
            case tile.StoreOp():
                self._store(op)
            case tile.GatherOp():
                self._gather(op)
            case tile.ScatterOp():
                self._scatter(op)
            case tile.MapOp():
                self._map(op)
            case tile.ReduceOp():
                self._reduce(op)
            case OnlineSoftmaxOp() | tile.AddExponentialsOp():
                simulate_online_softmax(self, op)
            case MomentsOp():
                simulate_moments(self, op)
            case ConvertOp():
                self._convert(op)
            case PackOp():
                held = self.tiles[op.value]
                self.hold(op.out, self._layout(op), held.values, held.defined, held.extents)
            case tile.DequantizeOp():
                layout = self._layout(op)
                operands = [self.tiles[operand] for operand in op.operands]
                values, defined = dequantize_registers(op, layout, operands)
                extents = (layout.shape[0], operands[0].extents[1])
                self.hold(op.out, layout, values, defined, extents)
            case MmaOp():
                self._multiply(op)
            case SqueezeOp():
                held = self.tiles[op.value]
                self.hold(op.out, self._layout(op), held.values, held.defined, held.extents[1:])
            case BarrierOp():
                self.barrier()
            case tile.ForOp():
                self._loop(op)
            case pointer_ops.IndexOp():
                self.indices[op.out] = int(self._agreed(op, op.value))
            case control_flow.IfOp():
                self._choose(op)
            case tile.ReturnOp() | tile.YieldOp():
                pass
            case _:
                raise UnsupportedError(f"the simulator has no meaning for {op.name}")

    def _map(self, op: tile.MapOp) -> None:
        layout = self._layout(op)
        operands = [self.picked(value, layout) for value in op.args]
        args = [values for values, _ in operands]
        defined = np.logical_and.reduce([defined for _, defined in operands])
        self.hold(op.out, layout, applied(op, args), defined, self._common(op.args))

    def _multiply(self, op: MmaOp) -> None:
        """The tensor cores: warp by warp from packed registers, of which those that do not exist are zero."""
        layout = self._layout(op)
        a, b = self.tiles[op.a], self.tiles[op.b]
        depth = min(a.extents[1], b.extents[0])
        left, right = (_zeroed(held, axis, depth) for held, axis in ((a, 1), (b, 0)))
        extents = [*layout.shape[:-2], a.extents[0], b.extents[1]]
        total, defined = np.zeros(shape(layout), np.float32), holding(layout).existing(extents)
        if op.accumulator is not None:
            given = self.tiles[op.accumulator]
            total, defined = np.where(given.defined, given.values, 0), defined & given.defined
        values = multiply_fragments(op.fragments, left, right, total)
        self.hold(op.out, layout, values, defined, extents)

    # -- shared memory ---------------------------------------------------------------------------------------------

    def _convert(self, op: ConvertOp) -> None:
        source, target = self.tiles[op.value], self._layout(op)
        dtype = in_shared_memory(tile.tile_type(op.out).dtype)
        number, start = self.numbers[op], integer(op, SHARED)
        held, wanted = holding(source.layout), holding(target)
        starts = start + dtype.itemsize * row_major(source.layout, dtype.itemsize)
        threads = np.nonzero(held.owner)[0]
        values = source.values[held.owner].astype(dtype)
        self.shared.write(number, threads, starts[held.owner], values, source.defined[held.owner])
        self.barrier()
        starts = start + dtype.itemsize * row_major(target, dtype.itemsize)
        values, defined = np.zeros(shape(target), dtype), np.zeros(shape(target), bool)
        threads = np.nonzero(wanted.inside)[0]
        read = self.shared.read(number, threads, starts[wanted.inside], dtype)
        values[wanted.inside], defined[wanted.inside] = read
        self.hold(op.out, target, values, defined, source.extents)

    def _reduce(self, op: tile.ReduceOp) -> None:
        source, axis = self.tiles[op.value], op.axis.value.data
        pairs = self.combined(op, source, axis, COMBINERS[op.kind.data], integer(op, SHARED))
        self.hold_reduced(op.out, source, axis, pairs)

    def combined(self, op: Operation, source: Held, axis: int, combiner: Combiner, start: int) -> Pairs:
        dtype, target = dtype_of_numpy(source.values.dtype), source.layout.sliced(axis)
        along = holding(source.layout).index[axis]
        counted = along < source.extents[axis]
        values = np.where(counted, source.values, np.asarray(combiner.identity(dtype)).astype(dtype.numpy))
        pairs = Pairs(combiner, values, np.where(counted, along, -1), source.defined | ~counted)
        pairs = combine_registers(pairs, source.layout, target, axis)
        pairs = combine_lanes(pairs, source.layout, axis)
        size, number = np.dtype(in_shared_memory(dtype)), self.numbers[op]
        if any(mode.axis == axis for mode in source.layout.warps):
            pairs = combine_warps(pairs, source.layout, axis, self.shared, self.barrier, number, start, size)
        if any(mode.axis == axis for mode in source.layout.blocks):
            pairs = combine_blocks(pairs, source.layout, axis, self.shared, self.barrier, number, start, size)
        return pairs

    def hold_reduced(self, out: SSAValue, source: Held, axis: int, pairs: Pairs) -> None:
        target = source.layout.sliced(axis)
        if (said := layout_of(out)) != target:
            reduced_registers(source.layout, said, axis)  # says what is wrong with it
        extents = [1 if a == axis else extent for a, extent in enumerate(source.extents)]
        values = pairs.positions if pairs.combiner.indexed else pairs.values
        self.hold(out, target, values, pairs.defined & holding(target).existing(extents), extents)

    # -- control flow ----------------------------------------------------------------------------------------------

    def _loop(self, op: tile.ForOp) -> None:
        lower, upper, step = self._sizes(op.bounds.data, op.indices)
        carried = op.block.args[1:]
        self._carry(carried, op.initial)
        for turn in range(lower, upper, step):
            self.indices[op.block.args[0]] = turn
            self.run(list(op.block.ops))
            self._carry(carried, _yielded(op.block), self.kept[op])
        for result, argument in zip(op.results, carried, strict=True):
            held = self.tiles[argument]
            self.hold(result, held.layout, held.values, held.defined, held.extents)

    def _carry(
        self,
        targets: Sequence[SSAValue],
        values: Sequence[SSAValue],
        kept: Sequence[Collection[int]] | None = None,
    ) -> None:
        """Hand tiles on, which then have their full capacity: what a smaller one lacks along axes that are kept stays
        as it was before."""
        handed: list[tuple[SSAValue, Layout, np.ndarray, np.ndarray]] = []
        for number, (target, value) in enumerate(zip(targets, values, strict=True)):
            layout = layout_of(target)
            picked, defined = self.picked(value, layout)
            if kept is not None:
                extents = zip(self.tiles[value].extents, layout.shape, strict=True)
                limits = [extent if axis in kept[number] else side for axis, (extent, side) in enumerate(extents)]
                exists, old = holding(layout).existing(limits), self.tiles[target]
                picked, defined = np.where(exists, picked, old.values), np.where(exists, defined, old.defined)
            handed.append((target, layout, picked, defined))
        for target, layout, picked, defined in handed:
            self.hold(target, layout, picked, defined, layout.shape)

    def _choose(self, op: control_flow.IfOp) -> None:
        block = op.then.block if self._agreed(op, op.condition) else op.otherwise.block
        self.run(list(block.ops))
        for result, value in zip(op.results, _yielded(block), strict=True):
            layout = layout_of(result)
            self.hold(result, layout, *self.picked(value, layout), self.tiles[value].extents)


def _yielded(block: Block) -> Sequence[SSAValue]:
    assert block.last_op is not None
    return block.last_op.operands


def _zeroed(held: Held, axis: int, depth: int) -> np.ndarray:
    """The registers of an operand, with zeros beyond so many places along K and where there is nothing."""
    inside = held.defined & (holding(held.layout).index[axis] < depth)
    return np.where(inside, held.values, 0)
