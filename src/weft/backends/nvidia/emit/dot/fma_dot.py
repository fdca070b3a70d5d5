"""Dots of any type, without tensor cores: operands in shared memory, sums in the registers of a blocked layout.

What the tensor cores do not take (f32 and f64, which they would round, integers, sums of odd length) is multiplied as
on a processor: each thread has some elements of the result, and walks along K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.cast import emit_cast, register_type
from weft.backends.llvm.values import V, const
from weft.backends.nvidia.emit.block import i32, load_shared, store_shared
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.loops import loop_with
from weft.backends.nvidia.emit.math import emit_map
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.fma_dot import depth_at_once, padded_sides, sum_type
from weft.backends.nvidia.ir.layouts import Layout
from weft.errors import LoweringError
from weft.ir.types import DType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(tile.DotOp)
def emit_fma_dot(codegen: KernelCodegen, op: tile.DotOp) -> None:
    """Write both operands, wait, and let every thread sum its elements along K."""
    if any(len(tile.tile_type(value).sizes) != 2 for value in (op.a, op.b)):
        raise LoweringError(f"a product of {op.a.type} and {op.b.type} has no code on a GPU")
    b, threads, layout = codegen.b, codegen.threads, layout_of(op.out)
    dtype = sum_type(tile.tile_type(op.out).dtype)
    size, place, depth = dtype.bytes, integer(op, SHARED), depth_at_once(op)
    (m, a_pitch), (_, b_pitch) = padded_sides(op, depth)
    b_place = place + m * a_pitch * size
    if op.accumulator is None:
        sums = [const(0, register_type(dtype))] * layout.count
    else:
        sums = [emit_cast(b, v, tile.tile_type(op.accumulator).dtype, dtype) for v in codegen.tiles[op.accumulator]]
    rows, columns = (_places(codegen, layout, axis) for axis in (0, 1))

    def body(step: V, carried: list[list[V]]) -> list[list[V]]:
        left = {
            at: load_shared(b, register_type(dtype), place, b.add(b.mul(row, i32(a_pitch)), step), size)
            for at, row in rows.items()
        }
        line = b.mul(step, i32(b_pitch))
        right = {
            at: load_shared(b, register_type(dtype), b_place, b.add(line, column), size)
            for at, column in columns.items()
        }
        following: list[V] = []
        for (row, column), total in zip(layout.offsets, carried[0], strict=True):
            if dtype.is_float:
                following.append(b.intrinsic("fma", left[row], right[column], total))
            else:
                following.append(
                    emit_map(b, "add", [emit_map(b, "mul", [left[row], right[column]], dtype), total], dtype)
                )
        return [following]

    whole = tile.tile_type(op.a).sizes[1]
    for start in range(0, whole, depth):
        part = range(start, min(start + depth, whole))
        if start:
            threads.barrier()  # until all have read the part before
        _write(codegen, op.a, dtype, place, a_pitch, 1, part)
        _write(codegen, op.b, dtype, b_place, b_pitch, 0, part)
        threads.barrier()
        (sums,) = loop_with(b, i32(0), i32(len(part)), i32(1), [sums], body)
    codegen.tiles[op.out] = [emit_cast(b, value, dtype, tile.tile_type(op.out).dtype) for value in sums]


def _write(
    codegen: KernelCodegen, value: SSAValue, dtype: DType, place: int, pitch: int, k_axis: int, part: range
) -> None:
    """A part of an operand along K, row by row; what it lacks at its edges is zero."""
    b, layout, own = codegen.b, layout_of(value), tile.tile_type(value)
    zero = const(0, register_type(dtype))
    held, exists = codegen.held(layout), codegen.existing(value, layout)
    owner = codegen.threads.owner(layout)
    for register, element in enumerate(codegen.tiles[value]):
        element = emit_cast(b, element, own.dtype, dtype)
        there = exists[register]
        element = element if there is None else b.select(there, element, zero)
        at = [b.add(codegen.threads.place(layout, axis), i32(layout.offsets[register][axis])) for axis in (0, 1)]
        inside: V | None = None
        if len(part) < own.sizes[k_axis]:
            at[k_axis] = b.sub(at[k_axis], i32(part.start))
            inside = b.icmp("ult", at[k_axis], i32(len(part)))
        index = b.add(b.mul(at[0], i32(pitch)), at[1])
        predicate = codegen.both(held[register], owner, inside)
        if predicate is None:
            store_shared(b, element, place, index, dtype.bytes)
        else:
            with b.when(predicate):
                store_shared(b, element, place, index, dtype.bytes)


def _places(codegen: KernelCodegen, layout: Layout, axis: int) -> dict[int, V]:
    """Where along an axis the elements of a thread lie, by their offsets; what does not exist is taken for the last."""
    b, first = codegen.b, codegen.threads.place(layout, axis)
    places: dict[int, V] = {}
    for offset in sorted({each[axis] for each in layout.offsets}):
        place = b.add(first, i32(offset))
        if layout.covered(axis) > layout.shape[axis]:
            place = b.intrinsic("umin", place, i32(layout.shape[axis] - 1))
        places[offset] = place
    return places
