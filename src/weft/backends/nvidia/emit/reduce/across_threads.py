"""Reductions over the threads of a block: in registers, then by shuffles in a warp, then through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import (
    Threads,
    i32,
    load_of_block,
    load_shared,
    shuffle_xor,
    store_shared,
)
from weft.backends.nvidia.emit.reduce.cluster_reduce import Combine, Crossing, Parts
from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """What a reduction that crosses warps needs: where its shared memory is, and the bytes of each part."""

    place: int
    sizes: tuple[int, ...]
    crossing: Crossing | None = None
    """How the blocks of a cluster send each other what they have, if they do."""


def reduce_axis(
    b: Function, threads: Threads, layout: Layout, axis: int, parts: Sequence[Parts], combine: Combine, via: Exchange
) -> list[Parts]:
    """Combine along an axis; the results are in `layout.sliced(axis)`, in every thread along the axis."""
    results = [tree(group, combine) for group in groups(layout, axis, parts)]
    for mask in axis_bits(layout.lanes, axis):
        results = [combine(r, tuple(shuffle_xor(b, part, mask) for part in r)) for r in results]
    threads.gather()
    if via.crossing is not None:
        return [via.crossing.combined(b, threads, result, combine, via.sizes) for result in results]
    if any(mode.axis == axis for mode in layout.warps):
        results = _across_warps(b, threads, layout, axis, results, combine, via)
    if any(mode.axis == axis for mode in layout.blocks):
        results = _across_blocks(b, threads, layout, axis, results, combine, via)
    return results


def groups(layout: Layout, axis: int, parts: Sequence[T]) -> list[list[T]]:
    """A thread's registers by the result that they go into, which are in the order of the sliced layout's."""
    lines: dict[tuple[int, ...], list[T]] = {offset: [] for offset in layout.sliced(axis).offsets}
    for offset, part in zip(layout.offsets, parts, strict=True):
        lines[(*offset[:axis], 0, *offset[axis + 1 :])].append(part)
    return list(lines.values())


_Node: TypeAlias = "int | tuple[_Node, _Node]"


def tree(values: list[Parts], combine: Combine) -> Parts:
    """Neighbours first, in order: positions stay comparable, and sums are short.

    A branch is finished before the next is begun: few results on the way are held at the same time.
    """
    nodes: list[_Node] = list(range(len(values)))
    while len(nodes) > 1:
        paired: list[_Node] = list(zip(nodes[::2], nodes[1::2], strict=False))
        nodes = paired + nodes[len(paired) * 2 :]

    def combined(node: _Node) -> Parts:
        return values[node] if isinstance(node, int) else combine(combined(node[0]), combined(node[1]))

    return combined(nodes[0])


def axis_bits(modes: Sequence[Mode], axis: int) -> list[int]:
    """The lane bits that run along an axis."""
    masks: list[int] = []
    bit = 1
    for mode in modes:
        for _ in range(mode.size.bit_length() - 1):
            if mode.axis == axis:
                masks.append(bit)
            bit *= 2
    return masks


def _across_warps(
    b: Function,
    threads: Threads,
    layout: Layout,
    axis: int,
    results: list[Parts],
    combine: Combine,
    via: Exchange,
) -> list[Parts]:
    """Every warp writes what it has; behind the barrier each reads what the warps along the axis have."""
    warps = layout.warp_count
    along = axis_bits(layout.warps, axis)
    mine = b.add(b.mul(threads.warp, i32(WARP)), threads.lane)
    places = _write(b, mine, warps, results, via)
    threads.barrier()
    others = b.binary("and", threads.warp, i32(warps - 1 - sum(along)))
    uniform = all(mode.axis in (axis, None) for mode in layout.lanes)
    count = 1 << len(along)
    combined = list[Parts]()
    for result, offsets in zip(results, places, strict=True):

        def read(index: V, offsets: list[int] = offsets, result: Parts = result) -> Parts:
            parts = zip(result, offsets, via.sizes, strict=True)
            return tuple(load_shared(b, part.type, offset, index, size) for part, offset, size in parts)

        if uniform:  # all lanes have the same: lane i reads what the i-th warp has, and shuffles do the rest
            which = _spread(b, b.binary("and", threads.lane, i32(count - 1)), along)
            value = read(b.add(b.mul(b.binary("or", others, which), i32(WARP)), threads.lane))
            for bit in range(len(along)):
                value = combine(value, tuple(shuffle_xor(b, part, 1 << bit) for part in value))
            combined.append(value)
        else:
            values = [
                read(b.add(b.mul(b.binary("or", others, i32(bits_at(turn, along))), i32(WARP)), threads.lane))
                for turn in range(count)
            ]
            combined.append(tree(values, combine))
    return combined


def _write(b: Function, mine: V, warps: int, results: list[Parts], via: Exchange) -> list[list[int]]:
    """Every thread writes what it has, each part behind the others; gives where those of each result begin."""
    places: list[list[int]] = []
    start = via.place
    for result in results:
        places.append([])
        for part, size in zip(result, via.sizes, strict=True):
            store_shared(b, part, start, mine, size)
            places[-1].append(start)
            start += size * WARP * warps
    return places


def _across_blocks(
    b: Function,
    threads: Threads,
    layout: Layout,
    axis: int,
    results: list[Parts],
    combine: Combine,
    via: Exchange,
) -> list[Parts]:
    """Every thread writes what its block has, and reads what its like in the other blocks wrote.

    They wait for each other twice: until all is written and, when that memory is needed again, until all is read.
    """
    if any(mode.axis == axis for mode in layout.warps):
        threads.barrier()  # what the warps exchanged lies in the same place
    mine = b.add(b.mul(threads.warp, i32(WARP)), threads.lane)
    along = axis_bits(layout.blocks, axis)
    places = _write(b, mine, layout.warp_count, results, via)
    threads.cluster_barrier()
    others = b.binary("and", threads.rank, i32(layout.block_count - 1 - sum(along)))
    combined: list[Parts] = []
    for result, offsets in zip(results, places, strict=True):
        values: list[Parts] = []
        for turn in range(1 << len(along)):
            rank = b.binary("or", others, i32(bits_at(turn, along)))
            parts = zip(result, offsets, via.sizes, strict=True)
            values.append(tuple(load_of_block(b, part.type, at, mine, size, rank) for part, at, size in parts))
        combined.append(tree(values, combine))
    threads.leave()
    return combined


def bits_at(number: int, masks: Sequence[int]) -> int:
    """The bits of a number at the places of masks."""
    return sum(mask for bit, mask in enumerate(masks) if number >> bit & 1)


def _spread(b: Function, value: V, masks: Sequence[int]) -> V:
    """The same for a value that is not known."""
    total = i32(0)
    for bit, mask in enumerate(masks):
        shift = mask.bit_length() - 1 - bit
        part = b.binary("and", value, i32(1 << bit))
        total = b.add(total, b.binary("shl", part, i32(shift)) if shift else part)
    return total
