"""Division of integers in vectors, for which processors have no instructions: by floats, and in 32 bits where it fits.

Of 32 bits, a quotient of doubles rounded towards zero is exact: it is off by less than the least distance of a fraction
from the next integer. Of 64 bits, most numbers are small (indices, counts), which a kernel finds out when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.backends.llvm.builder import Function, mangle
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.values import V
from weft.ir.types import DType, i32, i64

Formula: TypeAlias = Callable[[E, E, DType], E]
"""What is computed of a dividend and a divisor of a type."""
_SMALL = 30
"""Numbers below 2 to this power, and not below its negative, are divided in 32 bits, which hold all their quotients."""


def divided(x: E, divisor: E, dtype: DType) -> E:
    """The truncated quotient by a divisor that does not trap."""
    is_constant = not divisor.v.name.startswith("%")  # which LLVM multiplies by the reciprocal of
    if x.v.lanes == 1 or dtype != i32 or is_constant:
        return x.op("sdiv" if dtype.kind == "int" else "udiv", divisor)
    return (x.to("sitofp", "double") / divisor.to("sitofp", "double")).to("fptosi", "i32")


def in_halves_where_they_fit(b: Function, name: str, args: Sequence[V], dtype: DType, formula: Formula) -> E:
    """A formula of division; of vectors of 64-bit integers in 32 bits, if all are small enough."""
    x, y = (E(b, arg) for arg in args)
    if dtype != i64 or x.v.lanes == 1:
        return formula(x, y, dtype)
    slot = b.alloca(x.v.type)
    small, large, after = b.label("small"), b.label("large"), b.label("divided")
    b.branch_if((_is_small(x) & _is_small(y)).v, small, large)
    b.start(small)
    b.store(formula(x.to("trunc", "i32"), y.to("trunc", "i32"), i32).to("sext", "i64").v, slot, 8)
    b.branch(after)
    b.start(large)
    b.store(_one_by_one(b, name, x, y, formula).v, slot, 8)
    b.branch(after)
    b.start(after)
    return E(b, b.load(x.v.type, slot, 8))


def _is_small(x: E) -> E:
    """Whether all lanes are small: moved up by as much, none has a bit beyond."""
    moved = x + (1 << _SMALL)
    bits = x.b.call(f"llvm.vector.reduce.or.{mangle(x.v.type)}", "i64", moved.v)
    return (E(x.b, bits) >> (_SMALL + 1)).compare("eq", 0)


def _one_by_one(b: Function, name: str, x: E, y: E, formula: Formula) -> E:
    """The formula as a function that a module's kernels share: it is long, and rarely called."""
    type_ = x.v.type
    shared = f"weft.{name}.{mangle(type_)}"
    if b.module.add_shared(shared):
        params = [(type_, "x"), (type_, "y")]
        made = Function(b.module, shared, params, type_, "nounwind noinline memory(none)", linkage="internal")
        made.finish(formula(E(made, V(type_, "%x")), E(made, V(type_, "%y")), i64).v)
    return E(b, b.emit(type_, f"call {type_} @{shared}({x.v}, {y.v})"))
