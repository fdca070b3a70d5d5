"""Let a product of few rows ask for the weights of the next one, when its own are on their way.

    @qkv(%x, %w)                     @qkv(%x, %w, %next)      the first bytes of @out's weights come to the cache
    rotate, attend, …          →     rotate, attend, …        while these run, and the memory has little else to do
    @out(%y, %v)                     @out(%y, %v)

It is a hint: nothing is read, so that it does not matter who writes what is asked for. Equal kernels stay one: they ask
for as much as the smallest of the matrices that follow them has.
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import BlockArgument

from weft.backends.nvidia.dialect import integer, set_integer
from weft.lower.steps import KernelStep, Plan
from weft.ops.layouts import contiguous
from weft.tile import dialect as tile

_NEXT = "nvidia.next"
"""On a kernel: the bytes of its last pointer that it asks for."""
_MOST_ROWS = 16
_MOST_ASKED = 32 << 20
"""Of the second-level cache, so much that what is used meanwhile stays there too."""


def ask_ahead(plan: Plan, kernels: dict[str, tile.KernelOp]) -> Plan:
    """Give kernels the weights that are read next; the plan hands them over."""
    weights = {name: place for name, kernel in kernels.items() if (place := _weights(kernel)) is not None}
    products = [i for i, step in enumerate(plan.steps) if isinstance(step, KernelStep) and step.function in weights]
    following: dict[int, int] = {}
    asked: dict[str, int] = {}
    for here, there in zip(products, [*products[1:], None], strict=True):
        step, later = plan.steps[here], None if there is None else plan.steps[there]
        assert isinstance(step, KernelStep) and (later is None or isinstance(later, KernelStep))
        size = 0
        if later is not None:
            buffer = later.buffers[weights[later.function]]
            following[here], size = buffer, _bytes(plan, buffer)
        asked[step.function] = min(asked.get(step.function, _MOST_ASKED), size)
    steps = list(plan.steps)
    for here in products:
        step = plan.steps[here]
        assert isinstance(step, KernelStep)
        if asked[step.function]:
            steps[here] = replace(step, buffers=(*step.buffers, following[here]))
    for name, count in asked.items():
        if count:
            kernel = kernels[name]
            pointers = [each for each in kernel.block.args if isinstance(each.type, tile.PointerType)]
            kernel.block.insert_arg(pointers[weights[name]].type, len(pointers))
            set_integer(kernel, _NEXT, count)
    return replace(plan, steps=tuple(steps))


def asked_ahead(kernel: tile.KernelOp) -> tuple[BlockArgument, int] | None:
    """What a kernel asks for, and how many bytes of it."""
    count = integer(kernel, _NEXT)
    pointers = [each for each in kernel.block.args if isinstance(each.type, tile.PointerType)]
    return (pointers[-1], count) if count else None


def _weights(kernel: tile.KernelOp) -> int | None:
    """Which of its arguments are the weights of the one product of few rows that a kernel makes."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    if (
        len(dots) != 1
        or len(tile.tile_type(dots[0].out).sizes) != 2
        or tile.tile_type(dots[0].out).sizes[0] > _MOST_ROWS
    ):
        return None
    made = dots[0].b.owner
    load = made.codes.owner if isinstance(made, tile.DequantizeOp) else made
    pointer = load.pointer if isinstance(load, tile.LoadOp) else None
    return pointer.index if isinstance(pointer, BlockArgument) else None


def _bytes(plan: Plan, number: int) -> int:
    """Of a buffer that is one piece of memory, and there before the program starts."""
    buffer = plan.buffers[number]
    count = 1
    for size in buffer.tensor.shape:
        if not isinstance(size, int):
            return 0
        count *= size
    dense = buffer.layout == contiguous(buffer.tensor) and buffer.role in ("input", "constant")
    return count * buffer.tensor.dtype.bytes if dense else 0
