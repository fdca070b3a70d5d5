"""Operands that threads stage in shared memory as LLVM code: swizzled as the tensor cores read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, do, i32
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import joined, pair, pieces
from weft.backends.nvidia.emit.memory.swizzle import swizzled
from weft.backends.nvidia.ir.dialect import layout_of, layouts_of
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.local_memory import FenceAsyncSharedOp, LocalOperandOp, LocalStoreOp
from weft.backends.nvidia.ir.mma import PACKED, RAW
from weft.backends.nvidia.ir.rings import SlotType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_MOST_AT_ONCE = 8
"""Elements of 16 bits in what a swizzle leaves together."""


def _address(codegen: KernelCodegen, start: int) -> V:
    b = codegen.b
    return b.add(b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32"), i32(start))


@EMITTERS.register(LocalStoreOp)
def emit_local_store(codegen: KernelCodegen, op: LocalStoreOp) -> None:
    b, (layout,), slot = codegen.b, layouts_of(op), op.slot
    words, inner = _words_of(codegen, op.value, layout), slot.axis
    values = codegen.registers_of(op.value, layout) if words is None else []
    run = _run(layout, inner)
    base, exists, owner = _address(codegen, op.start.value.data), codegen.held(layout), codegen.threads.owner(layout)
    for first in range(0, layout.count, run):
        line, along = (
            b.add(codegen.threads.place(layout, axis), i32(layout.offsets[first][axis])) for axis in (1 - inner, inner)
        )
        place = b.add(base, swizzled(b, slot, line, along))
        predicate = codegen.both(exists[first], owner)
        written = _narrow(codegen, values[first : first + run], slot) if words is None else words(first, run)
        if predicate is None:
            _write(codegen, written, place)
        else:
            with b.when(predicate):
                _write(codegen, written, place)


def _run(layout: Layout, inner: int) -> int:
    """How many registers hold neighbours along an axis that lie together wherever a thread's elements begin."""
    run = min(layout.neighbours, _MOST_AT_ONCE) if layout.vector.axis == inner else 1
    others = [m for m in (*layout.registers[1:], *layout.lanes, *layout.warps) if m.axis == inner]
    while run > 1 and (layout.shape[inner] % run or any(mode.step % run for mode in others)):
        run //= 2
    return run


def _words_of(codegen: KernelCodegen, value: SSAValue, layout: Layout) -> Callable[[int, int], list[V]] | None:
    """What neighbours are in memory, by the first of them and their number, where registers hold that already."""
    load, b = value.owner, codegen.b
    if not isinstance(load, tile.LoadOp) or layout != layout_of(value):
        return None
    held = codegen.tiles[value]
    if RAW in load.attributes:
        return lambda first, run: _in_pairs(b, held[first : first + run])
    if PACKED in load.attributes:
        return lambda first, run: (
            held[first // 2 : (first + run) // 2] if run > 1 else [pieces(b, held[first // 2], 16, 32)[first % 2]]
        )
    return None


def _in_pairs(b: Function, halves: list[V]) -> list[V]:
    return (
        halves
        if len(halves) == 1
        else [joined(b, low, high) for low, high in zip(halves[::2], halves[1::2], strict=True)]
    )


def _narrow(codegen: KernelCodegen, values: Sequence[V], slot: SlotType) -> list[V]:
    """Neighbours rounded to 16 bits, two in a word."""
    b, name = codegen.b, slot.dtype.name
    if len(values) == 1:
        return [b.convert("trunc", pair(b, values[0], values[0], name), "i16")]
    return [pair(b, low, high, name) for low, high in zip(values[::2], values[1::2], strict=True)]


def _write(codegen: KernelCodegen, words: Sequence[V], place: V) -> None:
    """Write what is one half of a word, or whole words."""
    if words[0].type == "i16":
        do(codegen.b, "st.shared.b16 [$0], $1;", "r,h", place, words[0])
        return
    names = ", ".join(f"${number + 1}" for number in range(len(words)))
    kind, given = ("", names) if len(words) == 1 else (f".v{len(words)}", f"{{{names}}}")
    do(codegen.b, f"st.shared{kind}.b32 [$0], {given};", "r" + ",r" * len(words), place, *words)


@EMITTERS.register(FenceAsyncSharedOp)
def emit_fence_async_shared(codegen: KernelCodegen, op: FenceAsyncSharedOp) -> None:
    do(codegen.b, "cp.async.commit_group;", "")
    do(codegen.b, "cp.async.wait_group 0;", "")
    do(codegen.b, "fence.proxy.async.shared::cta;", "")
    codegen.threads.barrier()


@EMITTERS.register(LocalOperandOp)
def emit_local_operand(codegen: KernelCodegen, op: LocalOperandOp) -> None:
    codegen.slots[op.out] = _address(codegen, op.start.value.data)
