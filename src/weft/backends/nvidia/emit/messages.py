"""What a kernel tells its author: printed values, by the driver's `vprintf`, and conditions that do not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.printed_values import shown, text_constant
from weft.backends.llvm.values import V, const
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import asm
from weft.backends.nvidia.ir.dialect import layout_of
from weft.ir.attributes import from_attribute
from weft.tile import control_flow
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

VPRINTF = "vprintf"
"""The one function that a GPU's driver has for kernels."""


@EMITTERS.register(control_flow.CheckOp)
def emit_check(codegen: KernelCodegen, op: control_flow.CheckOp) -> None:
    """Where the condition is false, write the number of the check to the kernel's status."""
    b, layout = codegen.b, layout_of(op.condition)
    pointers = [arg for arg in codegen.kernel.block.args if isinstance(arg.type, tile.PointerType)]
    status = codegen.pointers[pointers[-1]]
    held, masks = codegen.held(layout), codegen.registers_of(op.mask, layout)
    wrong: V | None = None
    for register, condition in enumerate(codegen.tiles[op.condition]):
        failed = b.binary("xor", condition, const(True, "i1"))
        failed = codegen.both(failed, held[register], masks[register] if masks else None)
        assert failed is not None
        wrong = failed if wrong is None else b.binary("or", wrong, failed)
    assert wrong is not None
    number = V("i64", str(op.number.value.data))
    asm(b, "void", "@$2 st.global.b64 [$1], $0;", "l,l,b,~{memory}", number, status, wrong, pure=False)


@EMITTERS.register(control_flow.PrintOp)
def emit_print(codegen: KernelCodegen, op: control_flow.PrintOp) -> None:
    """One line for each element, with the program's numbers and the element's index; each is printed once."""
    b = codegen.b
    dtypes, prefix = from_attribute(op.attributes["dtypes"]), op.prefix.data.replace("%", "%%")
    assert isinstance(dtypes, tuple)
    programs = [codegen.scalars[p.out] for p in codegen.kernel.block.ops if isinstance(p, tile.ProgramOp)]
    if not op.operands:
        first = codegen.threads.owner(codegen.layouts[0])
        assert first is not None
        with b.when(first):
            _print(codegen, f"pid (%ld, %ld, %ld){prefix}\n", programs)
    for number, (value, dtype) in enumerate(zip(op.operands, dtypes, strict=True)):
        layout = layout_of(value)
        index = f" idx ({', '.join(['%d'] * layout.rank)})"
        several = f"(operand {number}) " if len(op.operands) > 1 else ""
        held, owner = codegen.held(layout), codegen.threads.owner(layout)
        for register, element in enumerate(codegen.tiles[value]):
            places = [
                b.add(codegen.threads.place(layout, axis), i32(offset))
                for axis, offset in enumerate(layout.offsets[register])
            ]
            form, printed = shown(codegen.b, element, str(dtype), op.hexadecimal is not None)
            text = f"pid (%ld, %ld, %ld){index}{prefix}{several}{form}\n"
            with b.when(codegen.both(held[register], owner) or const(True, "i1")):
                _print(codegen, text, [*programs, *places, printed])


def _print(codegen: KernelCodegen, text: str, values: list[V]) -> None:
    """The values stand one behind the other in memory, each at a multiple of its size."""
    module, b = codegen.module, codegen.b
    name = text_constant(module, text, "weft_text", " addrspace(1)")
    buffer, place = b.alloca("i8", 8 * (len(values) + 1), 8), 0
    for value in values:
        size = 4 if value.type == "i32" else 8
        place = -(-place // size) * size
        b.store(value, b.gep(buffer, V("i64", str(place)), "i8"), size)
        place += size
    generic = b.emit("ptr", f"addrspacecast ptr addrspace(1) @{name} to ptr")
    b.call(VPRINTF, "i32", generic, buffer)
