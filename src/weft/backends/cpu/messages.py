"""What a kernel tells its author: printed values and conditions that do not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.cpu.combining import every_position
from weft.backends.llvm.printed_values import shown, text_constant
from weft.backends.llvm.values import V, const, i64
from weft.ir.attributes import from_attribute
from weft.tile import control_flow
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


def emit_check(codegen: KernelCodegen, op: control_flow.CheckOp) -> None:
    """Where the condition is false, write the number of the check to the kernel's status."""
    b = codegen.b
    status = next(codegen.pointers[arg] for arg in reversed(codegen.kernel.block.args) if arg in codegen.pointers)
    codegen.prepare(list(op.operands))
    with every_position(codegen, tile.tile_type(op.condition).sizes) as here:
        wrong = b.binary("xor", codegen.at(op.condition, here), const(True, "i1"))
        if op.mask is not None:
            wrong = b.binary("and", wrong, codegen.at(op.mask, here))
        with b.when(wrong):
            b.store(i64(op.number.value.data), status, 8)


def emit_print(codegen: KernelCodegen, op: control_flow.PrintOp) -> None:
    """One line for each element, with the program's numbers and the element's index."""
    b = codegen.b
    dtypes, prefix = from_attribute(op.attributes["dtypes"]), op.prefix.data.replace("%", "%%")
    assert isinstance(dtypes, tuple)
    programs = [codegen.scalars[p.out] for p in codegen.kernel.block.ops if isinstance(p, tile.ProgramOp)]
    codegen.prepare(list(op.operands))
    if not op.operands:
        head = f"pid (%ld, %ld, %ld){prefix}\n"
        _printf(codegen, head, programs)
    for number, (value, dtype) in enumerate(zip(op.operands, dtypes, strict=True)):
        sizes = tile.tile_type(value).sizes
        index = f" idx ({', '.join(['%ld'] * len(sizes))})" if sizes else " idx ()"
        several = f"(operand {number}) " if len(op.operands) > 1 else ""
        with every_position(codegen, sizes) as here:
            element = codegen.at(value, here)
            form, printed = shown(codegen.b, element, str(dtype), op.hexadecimal is not None)
            text = f"pid (%ld, %ld, %ld){index}{prefix}{several}{form}\n"
            _printf(codegen, text, [*programs, *here.index, printed])
    b.call("fflush", "i32", V("ptr", "null"))


def _printf(codegen: KernelCodegen, text: str, values: list[V]) -> None:
    module, b = codegen.module, codegen.b
    name = text_constant(module, text, "weft.text")
    module.declarations.setdefault("printf", "declare i32 @printf(ptr, ...)")
    arguments = ", ".join(str(v) for v in [V("ptr", f"@{name}"), *values])
    b.do(f"call i32 (ptr, ...) @printf({arguments})")
