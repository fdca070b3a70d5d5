"""Code for atomic updates of global memory: by one thread for each element, and told to all that hold it.

An update is a release of what its thread wrote before and an acquire for what it reads after: one fence on either side
of all of a tile's updates, which are themselves relaxed. Of a scalar that is done by the thread alone that updates it:
the others wait at a barrier before (`insert_barriers`), and for what it found behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.backends.llvm.cast import load_convert, register_type, store_convert
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V, const, memory_type
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import asm
from weft.backends.nvidia.emit.memory.gather_scatter import address_of
from weft.backends.nvidia.emit.memory.shared_tiles import read_tile, write_registers
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.shared_bytes import is_passed_on, register_bytes
from weft.backends.nvidia.target import NO_BF16_ATOMICS
from weft.ir.types import DType, f32
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_OF_FLOATS = {"max": "fmax", "min": "fmin"}
_SCOPE = 'syncscope("device")'


@EMITTERS.register(pointer_ops.AtomicOp)
def emit_atomic(codegen: KernelCodegen, op: pointer_ops.AtomicOp) -> None:
    b, layout, memory = codegen.b, layout_of(op.out), pointer_dtype(op)
    type_ = tile.tile_type(op.out)
    offsets, values, masks, expected = (
        codegen.registers_of(v, layout) for v in (op.offsets, op.value, op.mask, op.expected)
    )
    exists, owner = codegen.existing(op.out, layout), codegen.threads.owner(layout)
    relaxed, alone = "relaxed" in op.attributes, not layout.shape
    release = [] if relaxed else [f"fence {_SCOPE} release"]
    acquire = [f"fence {_SCOPE} acquire"] if op.out.uses and not relaxed else []
    for fence in () if alone else release:
        b.do(fence)
    found: list[V] = []
    for register in range(layout.count):
        address = address_of(codegen, codegen.pointers[op.pointer], offsets[register], memory.bytes)
        predicate = codegen.both(exists[register], owner, masks[register] if masks else None)
        wanted = expected[register] if expected else None

        arguments = (address, values[register], wanted, memory)

        def update(arguments: tuple[V, V, V | None, DType] = arguments) -> V:
            for fence in release if alone else ():
                b.do(fence)
            old = _updated(codegen, op.kind.data, *arguments)
            for fence in acquire if alone else ():
                b.do(fence)
            return old

        found.append(_guarded(codegen, update, memory, predicate))
    for fence in () if alone else acquire:
        b.do(fence)
    if is_passed_on(op):
        start = integer(op, SHARED)
        write_registers(codegen, found, layout, start, register_bytes(type_.dtype))
        codegen.threads.barrier()
        found = read_tile(codegen, op.out, layout, start, collective_ops.row_major(type_.sizes))
    codegen.tiles[op.out] = found


def _guarded(codegen: KernelCodegen, update: Callable[[], V], memory: DType, predicate: V | None) -> V:
    """Update an element where a predicate holds; gives what was there, or 0."""
    if predicate is None:
        return update()
    b = codegen.b
    before, yes, after = b.block, b.label("then"), b.label("after")
    b.branch_if(predicate, yes, after)
    b.start(yes)
    old = update()
    end = b.block
    b.branch(after)
    b.start(after)
    nothing = const(0, register_type(memory))
    return b.emit(old.type, f"phi {old.type} [ {nothing.name}, %{before} ], [ {old.name}, %{end} ]")


def _updated(codegen: KernelCodegen, kind: str, address: V, value: V, expected: V | None, memory: DType) -> V:
    b = codegen.b
    pointer = b.emit("ptr addrspace(1)", f"inttoptr {address} to ptr addrspace(1)")
    native = memory.name in ("f16", "f32", "f64") or (memory.name == "bf16" and NO_BF16_ATOMICS not in b.module.lacks)
    if kind == "add" and native:
        float_type = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}[memory.name]
        added = b.bitcast(store_convert(b, value, memory), float_type)
        old = b.emit(float_type, f"atomicrmw fadd {pointer}, {added} {_SCOPE} monotonic, align {memory.bytes}")
        return load_convert(b, b.bitcast(old, memory_type(memory)), memory)
    if kind == "cas" or (memory.is_float and kind != "xchg") or memory.bits < 32:
        return _exchanged(codegen, kind, pointer, value, expected, memory)
    raw = store_convert(b, value, memory)
    bits = b.bitcast(raw, f"i{memory.bytes * 8}")
    unsigned = "u" if memory.kind == "uint" and kind in ("max", "min") else ""
    instruction = f"atomicrmw {unsigned}{kind} {pointer}, {bits} {_SCOPE} monotonic, align {memory.bytes}"
    return load_convert(b, b.bitcast(b.emit(bits.type, instruction), raw.type), memory)


def _exchanged(codegen: KernelCodegen, kind: str, pointer: V, value: V, expected: V | None, memory: DType) -> V:
    """Compute and try to write, until nobody else has written in between."""
    b, size = codegen.b, memory.bytes
    type_ = f"i{size * 8}"

    def bits(register: V) -> V:
        return b.bitcast(store_convert(b, register, memory), type_)

    def tried(seen: V, new: V) -> V:
        """What was there: `new` is written if that is `seen`."""
        if size == 2:  # LLVM would touch the whole word, and with it what is not the tensor's
            address = b.emit("i64", f"ptrtoint {pointer} to i64")
            text = "atom.relaxed.gpu.global.cas.b16 $0, [$1], $2, $3;"
            return asm(b, "i16", text, "=h,l,h,h,~{memory}", address, seen, new, pure=False)
        order = f"{_SCOPE} monotonic monotonic, align {size}"
        pair = b.emit(f"{{ {type_}, i1 }}", f"cmpxchg {pointer}, {seen}, {new} {order}")
        return b.emit(type_, f"extractvalue {pair}, 0")

    if expected is not None:
        found = tried(bits(expected), bits(value))
        return load_convert(b, b.bitcast(found, memory_type(memory)), memory)
    first = b.emit(type_, f"load atomic {type_}, {pointer} {_SCOPE} monotonic, align {size}")
    before, again, done = b.block, b.label("again"), b.label("done")
    b.branch(again)
    b.start(again)
    seen, position = V(type_, b.fresh()), len(b.lines)
    b.lines.append("")
    old = load_convert(b, b.bitcast(seen, memory_type(memory)), memory)
    function = _OF_FLOATS.get(kind, kind) if memory.is_float else kind
    wide = f32 if memory.is_float and memory.bits < 32 else memory
    new = value if kind == "xchg" else emit_function(b, function, [old, value], wide)
    found = tried(seen, bits(new))
    b.lines[position] = f"  {seen.name} = phi {type_} [ {first.name}, %{before} ], [ {found.name}, %{b.block} ]"
    b.branch_if(b.icmp("eq", found, seen), done, again)
    b.start(done)
    return old
