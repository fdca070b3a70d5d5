"""The tensor cores of Hopper: dots of slots, accumulated in the registers of a warp group.

A descriptor says where an operand lies in shared memory: the address, and how far apart its parts are. Its upper word
is the same for all slots; the lower one moves along M, N and K by additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.ir.rings import LINE, SlotType
from weft.backends.nvidia.ir.wgmma import DEPTH_BYTES, OPERAND_NAMES, ROWS
from weft.backends.nvidia.matmul_unit import WGMMA
from weft.ir.types import DType

_SWIZZLED, _STRIDE = 1 << 30, 1024 >> 4
_HIGH = _SWIZZLED | _STRIDE


def descriptor(b: Function, address: V, slot: SlotType, k_axis: int) -> V:
    """The lower word of a slot's descriptor; `k_axis` is the axis that the dot sums over."""
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
    a: tuple[V, SlotType] | list[V],
    c: tuple[V, SlotType],
    accumulators: Sequence[V] | None,
    rows: int,
) -> list[V]:
    """Begin to add a warp group's rows of a dot to its accumulators, or to set these where there are none.

    `a` is a slot, or the words of fragments of it. All instructions are one piece of PTX: LLVM has nothing to move
    between them. The accumulators go through it and through the wait, so that no use of them can move before either.
    """
    b_low, b_slot = c
    depth, columns = b_slot.sizes
    each = columns // 2
    count = each * rows // ROWS
    step = DEPTH_BYTES // b_slot.dtype.bytes
    first = count if accumulators is None else 2 * count  # the number of the first operand that is no accumulator
    lines = ["{ .reg .pred p; .reg .b32 lo; .reg .b64 da, db; wgmma.fence.sync.aligned; "]
    lines.append(f"setp.ne.b32 p, {int(accumulators is not None)}, 0; ")
    for k in range(0, depth, step):
        lines.append("setp.ne.b32 p, 1, 0; " if k == step and accumulators is None else "")
        lines.append(f"add.u32 lo, ${first}, {_step(b_slot, 0, 0, k)}; mov.b64 db, {{lo, {_HIGH}}}; ")
        for part in range(rows // ROWS):
            registers = ", ".join(f"${part * each + i}" for i in range(each))
            if isinstance(a, tuple):
                _, slot = a
                lines.append(f"add.u32 lo, ${first + 1}, {_step(slot, 1, part * ROWS, k)}; ")
                lines.append(f"mov.b64 da, {{lo, {_HIGH}}}; ")
                left, majors = "da", f", {int(slot.axis == 0)}, {int(b_slot.axis == 1)}"
            else:
                start = first + 1 + part * depth // 4 + k // 4
                left, majors = f"{{${start}, ${start + 1}, ${start + 2}, ${start + 3}}}", f", {int(b_slot.axis == 1)}"
            name, signs = _instruction(a[1].dtype if isinstance(a, tuple) else b_slot.dtype, b_slot.dtype)
            signs += majors if WGMMA.reads_any_way(b_slot.dtype) else ""
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k{step}.{name} {{{registers}}}, {left}, db, p{signs}; "
            )
    lines.append("wgmma.commit_group.sync.aligned; }")
    others = [b_low, *([a[0]] if isinstance(a, tuple) else a)]
    return _through(b, "".join(lines), accumulators, count, others, "float" if b_slot.dtype.is_float else "i32")


def _instruction(a: DType, b: DType) -> tuple[str, str]:
    """The types of an instruction's result and operands, and the signs that it takes floats with."""
    result, signs = ("f32", ", 1, 1") if a.is_float else ("s32", "")
    return f"{result}.{OPERAND_NAMES[a.name]}.{OPERAND_NAMES[b.name]}", signs


def in_own_registers(b: Function, values: Sequence[V]) -> list[V]:
    """Values, each in a register of its own: a dot can begin with them while another one is under way."""
    return _through(b, "", values, len(values), [], values[0].type)


def wait(b: Function, values: Sequence[V], pending: int, held: Sequence[V]) -> list[V]:
    """Until all dots but the last `pending` are done; what these read in registers stays `held` until then."""
    element = values[0].type if values else "float"
    return _through(b, f"wgmma.wait_group.sync.aligned {pending};", values, len(values), held, element)


def _through(
    b: Function, text: str, values: Sequence[V] | None, count: int, others: Sequence[V], element: str
) -> list[V]:
    """A piece of PTX that sums come out of as $0, $1, …, and go into as inputs tied to them where they are given."""
    given = values or []
    code = "=f" if element == "float" else "=r"
    codes = [code] * count + [str(i) for i in range(len(given))] + ["r"] * len(others) + ["~{memory}"]
    struct = "{ " + ", ".join([element] * count) + " }"
    operands = ", ".join(map(str, [*given, *others]))
    result = b.emit(struct, f'call {struct} asm sideeffect "{text}", "{",".join(codes)}"({operands}) #1')
    return [b.emit(element, f"extractvalue {result}, {i}") for i in range(count)]
