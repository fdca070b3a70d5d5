"""Elements at places that have nothing to do with each other: read one by one, by functions that a module shares."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.memory_order import lazy_closure
from weft.backends.cpu.position import Position
from weft.backends.llvm.builder import Function, mangle
from weft.backends.llvm.cast import load_convert
from weft.backends.llvm.values import V, i64, memory_type, vector
from weft.ir.types import DType
from weft.ir.types import i64 as integer
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_READER = "nounwind noinline memory(read)"
ZERO_BYTES = 512


def looked_up(codegen: KernelCodegen, op: tile.GatherOp, here: Position, kept: set[SSAValue]) -> V:
    """Elements at offsets that may all be read, by a function that all such reads of a type share.

    What is the same for all lanes is added to the pointer; offsets that lie in memory go from there to addresses.
    """
    b, dtype = codegen.b, pointer_dtype(op.pointer)
    memory, width, inner = memory_type(dtype), here.lanes, here.inner
    terms = _terms(op.offsets, {*codegen.buffers, *here.values})
    base = codegen.pointers[op.pointer]
    for term in terms:
        if not moves(codegen, term, inner):
            base = b.gep(base, at_lane(codegen, term, here, kept, 0), memory)
    first, *others = [term for term in terms if moves(codegen, term, inner)]
    buffer = codegen.buffers.get(first) if first not in kept else None
    if not others and buffer is not None and first not in here.values and buffer.dtype == integer:
        offsets = buffer.address(b, [i64(0) if n == 1 else i for n, i in zip(buffer.shape, here.index, strict=True)])
    else:
        offsets = codegen.at(first, here, kept)
        for term in others:
            offsets = b.binary("add", offsets, codegen.at(term, here, kept))
    found = vector(memory, width)
    name = f"weft.read.{memory}.{width}.{mangle(offsets.type)}"
    if codegen.module.add_shared(name):
        params = [("ptr", "base"), (offsets.type, "offsets")]
        reader = Function(codegen.module, name, params, found, _READER, linkage="internal")
        start, places = V("ptr", "%base"), V(offsets.type, "%offsets")
        raw = V(found, "poison")
        for lane in range(width):
            if offsets.type == "ptr":
                place = reader.load("i64", reader.gep(places, i64(lane), "i64"), 8)
            else:
                place = reader.extract(places, lane)
            raw = reader.insert(raw, reader.load(memory, reader.gep(start, place, memory), dtype.bytes), lane)
        reader.finish(raw)
    return load_convert(b, b.emit(found, f"call {found} @{name}({base}, {offsets})"), dtype)


def _terms(offsets: SSAValue, known: Set[SSAValue]) -> list[SSAValue]:
    """What a sum of 64-bit integers adds up, as far as it is not known already."""
    op = offsets.op if isinstance(offsets, OpResult) and offsets not in known else None
    if not isinstance(op, tile.MapOp) or op.function.data != "add" or tile.tile_type(offsets).dtype != integer:
        return [offsets]
    return [term for arg in op.args for term in _terms(arg, known)]


def gathered(codegen: KernelCodegen, op: tile.GatherOp, offsets: V, mask: V | None) -> V:
    """Elements of memory, read by a function that all gathers of a type share: it is long, and compiled once."""
    b, dtype = codegen.b, pointer_dtype(op.pointer)
    memory, width = memory_type(dtype), offsets.lanes
    pointers, found = vector("ptr", width), vector(memory, width)
    addresses = b.emit(pointers, f"getelementptr {memory}, {codegen.pointers[op.pointer]}, {offsets}")
    if mask is not None:
        addresses = b.select(b.splat(mask, width), addresses, b.splat(zeros(codegen), width))
    name = f"weft.gather.{memory}.{width}"
    if codegen.module.add_shared(name):
        reader = Function(codegen.module, name, [(pointers, "at")], found, _READER, linkage="internal")
        raw = V(found, "poison")
        for lane in range(width):
            element = reader.load(memory, reader.extract(V(pointers, "%at"), lane), dtype.bytes)
            raw = reader.insert(raw, element, lane)
        reader.finish(raw)
    return b.emit(found, f"call {found} @{name}({addresses})")


def zeros(codegen: KernelCodegen) -> V:
    codegen.module.globals.setdefault(
        "weft.zero", f"@weft.zero = internal constant [{ZERO_BYTES} x i8] zeroinitializer, align 64"
    )
    return V("ptr", "@weft.zero")


# -- what gathers and scatters ask -----------------------------------------------------------------------------------


def pointer_dtype(pointer: SSAValue) -> DType:
    assert isinstance(pointer.type, tile.PointerType)
    return pointer.type.dtype


def moves(codegen: KernelCodegen, value: SSAValue | None, axis: int) -> bool:
    return value is not None and not codegen.neighbours.is_still(value, axis)


def keeps(codegen: KernelCodegen, value: SSAValue, here: Position, kept: set[SSAValue]) -> bool:
    """Whether something that moves along the lanes is kept on the way: that has to be computed whole."""
    return bool(kept) and any(v in kept and moves(codegen, v, here.inner) for v in lazy_closure(value))


def at_lane(codegen: KernelCodegen, value: SSAValue, here: Position, kept: set[SSAValue], lane: int) -> V:
    """The value at one lane of a position; what does not move along the lanes is not computed again."""
    b = codegen.b
    if keeps(codegen, value, here, kept):
        return b.extract(codegen.at(value, here, kept), lane)
    index = tuple(b.add(v, i64(lane)) if a == here.inner else v for a, v in enumerate(here.index))
    return codegen.at(value, here.known_at(index, 1, codegen.neighbours.is_still))
