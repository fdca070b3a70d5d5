"""The tensor cores of Hopper: products of slots, accumulated in the registers of a warp group.

A descriptor says where an operand lies in shared memory: the address, and how far apart its parts are. Its upper word
is the same for all slots; the lower one moves along M, N and K by additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm.builder import Function, V
from weft.backends.nvidia.asynchronous import LINE, SlotType
from weft.backends.nvidia.block import i32
from weft.backends.nvidia.layouts import Layout, Mode

_ROWS, _DEPTH = 64, 16
_SWIZZLED, _STRIDE = 1 << 30, 1024 >> 4
_HIGH = _SWIZZLED | _STRIDE


def accumulator_layout(shape: Sequence[int], consumers: int) -> Layout:
    """Where the tensor cores leave a product: 64 rows to a warp group at a time, 16 of them to each of its warps."""
    rows, columns = shape
    each = rows // (_ROWS * consumers)
    registers = [Mode(2, 1), Mode(2, 0, 8), Mode(columns // 8, 1, 8)]
    registers += [Mode(each, 0, _ROWS)] if each > 1 else []
    warps = [Mode(4, 0, 16), *([Mode(consumers, 0, _ROWS * each)] if consumers > 1 else [])]
    return Layout((rows, columns), tuple(m for m in registers if m.size > 1), (Mode(4, 1, 2), Mode(8, 0)), tuple(warps))


def descriptor(b: Function, address: V, slot: SlotType, k_axis: int) -> V:
    """The lower word of a slot's descriptor; `k_axis` is the axis that the product sums over."""
    # Along K lines follow each other; else the next 64 of M or N lie in the next block.
    between = 1 if slot.axis == k_axis else slot.lines * LINE >> 4
    low = b.binary("lshr", b.binary("and", address, i32(0x3FFFF)), i32(4))
    return b.binary("or", low, i32(between << 16))


def _step(slot: SlotType, k_axis: int, outer: int, k: int) -> int:
    """How far the descriptor moves to a place along M or N and along K, in units of 16 bytes."""
    width = LINE // slot.dtype.bytes
    if slot.axis == k_axis:
        block, inside = divmod(k, width)
        return (block * slot.lines * LINE + outer * LINE + inside * slot.dtype.bytes) >> 4
    block, inside = divmod(outer, width)
    return (block * slot.lines * LINE + k * LINE + inside * slot.dtype.bytes) >> 4


def multiply(
    b: Function,
    a: tuple[V, SlotType],
    c: tuple[V, SlotType],
    accumulators: Sequence[V],
    rows: int,
    adding: V,
) -> list[V]:
    """Add a warp group's rows of a product to its accumulators; where `adding` is 0 they are set.

    All instructions are one piece of PTX: LLVM has nothing to move between them. The accumulators go through it and
    through the wait, so that no use of them can move before either.
    """
    (a_low, a_slot), (b_low, b_slot) = a, c
    columns, depth = b_slot.sizes[1], a_slot.sizes[1]
    count = len(accumulators)
    each = columns // 2
    dtype = a_slot.dtype.name
    start = 2 * count
    lines = ["{ .reg .pred p; .reg .b32 lo; .reg .b64 da, db; wgmma.fence.sync.aligned; "]
    # A warp group's first row moves the descriptor by a line for each, or by blocks.
    for k in range(0, depth, _DEPTH):
        lines.append(f"setp.ne.b32 p, ${start + 2}, 0; " if k == 0 else "setp.ne.b32 p, 1, 0; " if k == _DEPTH else "")
        lines.append(f"add.u32 lo, ${start + 1}, {_step(b_slot, 0, 0, k)}; mov.b64 db, {{lo, {_HIGH}}}; ")
        for part in range(rows // _ROWS):
            registers = ", ".join(f"${part * each + i}" for i in range(each))
            lines.append(f"add.u32 lo, ${start}, {_step(a_slot, 1, part * _ROWS, k)}; mov.b64 da, {{lo, {_HIGH}}}; ")
            majors = f"{int(a_slot.axis == 0)}, {int(b_slot.axis == 1)}"
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype} {{{registers}}}, da, db, p, "
                f"1, 1, {majors}; "
            )
    lines.append("wgmma.commit_group.sync.aligned; }")
    results = through(b, "".join(lines), accumulators, [a_low, b_low, adding])
    return through(b, "wgmma.wait_group.sync.aligned 0;", results, [])


def through(b: Function, text: str, values: Sequence[V], others: Sequence[V]) -> list[V]:
    """A piece of PTX that floats go through: as outputs $0, $1, … and as inputs tied to them."""
    count = len(values)
    codes = ["=f"] * count + [str(i) for i in range(count)] + ["r"] * len(others) + ["~{memory}"]
    struct = "{ " + ", ".join(["float"] * count) + " }"
    operands = ", ".join(map(str, [*values, *others]))
    result = b.emit(struct, f'call {struct} asm sideeffect "{text}", "{",".join(codes)}"({operands}) #1')
    return [b.emit("float", f"extractvalue {result}, {i}") for i in range(count)]
