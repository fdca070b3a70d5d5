"""How C's `printf` shows values, as LLVM code: `printf` on a processor, the driver's `vprintf` on a GPU."""

from __future__ import annotations

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V


def shown(b: Function, value: V, dtype: str, hexadecimal: bool) -> tuple[str, V]:
    """How C prints a value, and the value as C takes it."""
    if value.element in ("float", "double"):
        wide = b.convert("fpext", value, "double")
        return ("0x%016lx", b.bitcast(wide, "i64")) if hexadecimal else ("%f", wide)
    bits = int(value.element[1:])
    signed = not dtype.startswith("ui") and bits > 1
    if hexadecimal:
        return f"0x%0{max(bits // 4, 1)}lx", b.convert("zext", value, "i64")
    return ("%ld" if signed else "%lu"), b.convert("sext" if signed else "zext", value, "i64")


def text_constant(module: Module, text: str, prefix: str, space: str = "") -> str:
    """The name of a new constant with a text that ends in zero, in an address space: ` addrspace(1)`."""
    data = text.encode() + b"\0"
    name = f"{prefix}{sum(each.startswith(prefix) for each in module.globals)}"
    escaped = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data)
    module.globals[name] = f'@{name} = private{space} constant [{len(data)} x i8] c"{escaped}"'
    return name
