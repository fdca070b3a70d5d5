"""Rows that every warp of a block multiplies with wait in its shared memory.

tile.for %k … {                                  nvidia.hold %x                 once, before the loop
  %a = tile.load %x[%k] {packed}          →      tile.for %k … {
  %b = … codes … }                                 %a = tile.load %x[%k] {packed, held} … }

Codes are asked for a turn ahead, and there is no room in registers for rows that are, too: each turn would wait for
them as long as the memory takes when it is busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IndexType, IntegerAttr, i64
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, attr_def, irdl_op_definition, operand_def, var_operand_def

from weft.backends.llvm.builder import V
from weft.backends.llvm.builder import i64 as i64_of
from weft.backends.nvidia.alignment import WIDEST, divisor_of
from weft.backends.nvidia.block import SHARED_SYMBOL, do, i32, short
from weft.backends.nvidia.dialect import RESIDENT, integer, layout_of
from weft.backends.nvidia.global_memory import load_words
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.mma import PACKED, MmaOp
from weft.ir.expr import Size, substitute, symbol
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.codegen import KernelCodegen

HELD = "nvidia.held"
"""On a load: it reads rows that are held, so many elements from each other."""
_MOST_BYTES = 128 << 10
"""Of all blocks of a multiprocessor."""
_APART = 8
"""Elements between rows: so two of them lie in different banks."""
_SIZE = 2
"""Bytes of an element."""


@irdl_op_definition
class HoldOp(IRDLOperation):
    """Copy `rows` of `length` elements, `apart` in memory, to the start of shared memory, where they are `pitch` from
    each other; the rest of a row there is zero. All threads wait for it."""

    name = "nvidia.hold"
    pointer = operand_def(tile.PointerType)
    indices = var_operand_def(IndexType)
    offset = attr_def(tile.Sizes)
    apart = attr_def(tile.Sizes)
    rows = attr_def(IntegerAttr)
    length = attr_def(IntegerAttr)
    pitch = attr_def(IntegerAttr)

    @property
    def bytes(self) -> int:
        return self.rows.value.data * self.pitch.value.data * _SIZE


def hold_rows(kernel: tile.KernelOp) -> int:
    """Let a product with weights out of codes read its rows from shared memory; returns the bytes that takes."""
    products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
    if len(products) != 1 or not isinstance(products[0].b.owner, tile.DequantizeOp):
        return 0
    loop, load = products[0].parent_op(), products[0].a.owner
    if not isinstance(loop, tile.ForOp) or not isinstance(load, tile.LoadOp) or load.parent is not loop.block:
        return 0
    if PACKED not in load.attributes or load.sides is None or load.starts is None:
        return 0
    hold = _hold(loop, load)
    if hold is None or (bytes_ := hold.bytes) * integer(kernel, RESIDENT, 1) > _MOST_BYTES:
        return 0
    block = loop.parent
    assert block is not None
    block.insert_op_before(hold, loop)
    load.attributes[HELD] = hold.pitch
    return bytes_


def _hold(loop: tile.ForOp, load: tile.LoadOp) -> HoldOp | None:
    """What copies all that a load reads in the turns of a loop; None if that is not aligned, or not known."""
    assert load.sides is not None
    rows, length = load.sides.data
    turn, kept = loop.block.args[0], [index for index in load.indices if index is not loop.block.args[0]]
    if not isinstance(rows, int) or not isinstance(length, int) or load.strides.data[1] != 1:
        return None
    places: dict[str, Size] = {}
    for number, index in enumerate(load.indices):
        places[f"d{number}"] = 0 if index is turn else symbol(f"d{kept.index(index)}")
    offset, apart = (substitute(each, places) for each in (load.offset.data[0], load.strides.data[0]))
    steps: list[Size] = [length, offset, *([apart] if rows > 1 else [])]
    if any(divisor_of(step, kept) * _SIZE % WIDEST for step in steps):
        return None
    depth = tile.tile_type(load.out).sizes[1]
    return HoldOp.create(
        operands=[load.pointer, *kept],
        attributes={
            "offset": tile.Sizes((offset,)),
            "apart": tile.Sizes((apart,)),
            "rows": IntegerAttr(rows, i64),
            "length": IntegerAttr(length, i64),
            "pitch": IntegerAttr(-(-length // depth) * depth + _APART, i64),
        },
    )


def emit_held(codegen: KernelCodegen, op: Operation) -> bool:
    """The code of rows that are held; False if an op is something else."""
    if not isinstance(op, HoldOp):
        return False
    b, threads = codegen.b, codegen.launch.threads
    rows, length, pitch = (each.value.data for each in (op.rows, op.length, op.pitch))
    chunk = WIDEST // _SIZE
    pieces = pitch // chunk
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    thread = b.add(b.mul(codegen.threads.warp, i32(WARP)), codegen.threads.lane)
    first, apart = (codegen.size(each.data[0], op.indices) for each in (op.offset, op.apart))
    for begin in range(0, rows * pieces, threads):
        number = b.add(thread, i32(begin))
        row = b.binary("udiv", number, i32(pieces))
        along = b.mul(b.sub(number, b.mul(row, i32(pieces))), i32(chunk))
        place = b.add(first, b.add(b.mul(b.convert("zext", row, "i64"), apart), b.convert("zext", along, "i64")))
        source = b.add(codegen.pointers[op.pointer], b.mul(place, i64_of(_SIZE)))
        exists = b.icmp("slt", along, i32(length))
        there, source = b.select(exists, i32(WIDEST), i32(0)), b.select(exists, source, codegen.pointers[op.pointer])
        target = b.add(base, b.mul(number, i32(WIDEST)))
        text = f"cp.async.cg.shared.global [$0], [$1], {WIDEST}, $2;"
        if begin + threads <= rows * pieces:
            do(b, text, "r,l,r", target, source, there)
        else:
            with b.when(b.icmp("slt", number, i32(rows * pieces))):
                do(b, text, "r,l,r", target, source, there)
    do(b, "cp.async.wait_all;", "")
    codegen.threads.barrier()
    return True


def read_held(codegen: KernelCodegen, op: tile.LoadOp) -> list[V]:
    """The words of a load of held rows. Rows that do not exist are as the last one: no sum of theirs is read."""
    assert op.starts is not None
    b, layout = codegen.b, layout_of(op.out)
    rows, pitch = tile.tile_type(op.out).sizes[0], integer(op, HELD)
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    start = b.add(short(b, codegen.size(op.starts.data[1], op.indices)), codegen.threads.place(layout, 1))
    width = min(layout.vector.size, WIDEST // _SIZE)
    words: list[V] = []
    for register in range(0, layout.count, width):
        row_offset, offset = layout.offsets[register]
        row = b.add(codegen.threads.place(layout, 0), i32(row_offset))
        row = b.intrinsic("smin", row, i32(rows - 1))
        place = b.add(b.mul(row, i32(pitch)), b.add(start, i32(offset)))
        words += load_words(b, b.add(base, b.mul(place, i32(_SIZE))), _SIZE, width, None, "shared")
    return words
