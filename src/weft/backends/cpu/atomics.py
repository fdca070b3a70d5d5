"""Atomic updates of memory, element by element."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.combining import every_position
from weft.backends.cpu.computed import pointer_address
from weft.backends.llvm.cast import load_convert, store_convert
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V, const, memory_type
from weft.ir.types import DType, f32
from weft.tile import dialect as tile
from weft.tile import pointer_ops

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_OF_FLOATS = {"max": "fmax", "min": "fmin"}


def emit_atomic(codegen: KernelCodegen, op: pointer_ops.AtomicOp) -> None:
    b, type_ = codegen.b, tile.tile_type(op.out)
    assert isinstance(op.pointer.type, tile.PointerType)
    memory = op.pointer.type.dtype
    operands = [v for v in op.operands if isinstance(v.type, tile.TileType)]
    codegen.prepare(operands)
    result = Buffer.allocate(b, type_.sizes, type_.dtype)
    with every_position(codegen, type_.sizes) as here:
        value = codegen.at(op.value, here)
        address = pointer_address(codegen, op.pointer, codegen.at(op.offsets, here))
        expected = None if op.expected is None else codegen.at(op.expected, here)
        with ExitStack() as guarded:
            if op.mask is not None:
                result.write(b, const(0, value.type), here.index)
                guarded.enter_context(b.when(codegen.at(op.mask, here)))
            old = _updated(codegen, op.kind.data, address, value, expected, memory)
            result.write(b, old, here.index)
    if type_.sizes:
        codegen.buffers[op.out] = result
    else:
        codegen.fixed[op.out] = result.read(b, (), 1)


def _updated(codegen: KernelCodegen, kind: str, address: V, value: V, expected: V | None, memory: DType) -> V:
    """Update an element; gives what was there, as registers hold it."""
    b = codegen.b
    if kind == "cas" or (memory.is_float and kind != "xchg") or memory.bits < 8:
        return _exchanged(codegen, kind, address, value, expected, memory)
    raw = store_convert(b, value, memory)
    bits = b.bitcast(raw, f"i{memory.bytes * 8}")
    unsigned = "u" if memory.kind == "uint" and kind in ("max", "min") else ""
    instruction = f"atomicrmw {unsigned}{kind} {address}, {bits} seq_cst, align {memory.bytes}"
    old = b.emit(bits.type, instruction)
    return load_convert(b, b.bitcast(old, raw.type), memory)


def _exchanged(codegen: KernelCodegen, kind: str, address: V, value: V, expected: V | None, memory: DType) -> V:
    """Compute and try to write, until nobody else has written in between."""
    b = codegen.b
    type_ = f"i{memory.bytes * 8}"

    def bits(register: V) -> V:
        return b.bitcast(store_convert(b, register, memory), type_)

    if expected is not None:
        pair = b.emit(f"{{ {type_}, i1 }}", f"cmpxchg {address}, {bits(expected)}, {bits(value)} seq_cst seq_cst")
        found = b.emit(type_, f"extractvalue {pair}, 0")
        return load_convert(b, b.bitcast(found, memory_type(memory)), memory)
    slot = b.alloca(type_)
    b.store(b.load(type_, address, memory.bytes), slot, memory.bytes)
    again, done = b.label("again"), b.label("done")
    b.branch(again)
    b.start(again)
    seen = b.load(type_, slot, memory.bytes)
    old = load_convert(b, b.bitcast(seen, memory_type(memory)), memory)
    function = _OF_FLOATS.get(kind, kind) if memory.is_float else kind
    wide = f32 if memory.is_float and memory.bits < 32 else memory
    new = value if kind == "xchg" else emit_function(b, function, [old, value], wide)
    pair = b.emit(f"{{ {type_}, i1 }}", f"cmpxchg {address}, {seen}, {bits(new)} seq_cst seq_cst")
    b.store(b.emit(type_, f"extractvalue {pair}, 0"), slot, memory.bytes)
    b.branch_if(b.emit("i1", f"extractvalue {pair}, 1"), done, again)
    b.start(done)
    return old
