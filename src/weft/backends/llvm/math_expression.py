"""Expressions over LLVM values, so that a formula in `math_*.py` reads as one.

`E(b, v) * 2.0 + x` emits the instructions into `b`; Python numbers become constants of the other side's type. Works on
scalars and vectors alike. Operators carry no fast-math flags: the algorithms rely on where roundings happen, and say
`fma` where they want one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.backends.llvm.builder import Function, mangle
from weft.backends.llvm.values import V, float_literal, vector

Number = float | int


def constant(value: Number | bool, type_: str) -> V:
    """A constant of a scalar or vector type, written short (`splat (float 1.0)`) since a kernel holds hundreds."""
    element = V(type_, "").element
    if element == "i1":
        literal = "true" if value else "false"
    elif element.startswith("i"):
        literal = str(int(value))
    else:
        literal = float_literal(float(value), element)
    return V(type_, literal if type_ == element else f"splat ({element} {literal})")


@dataclass(frozen=True, slots=True)
class E:
    """A value and the function it is computed in."""

    b: Function
    v: V

    # -- making values ---------------------------------------------------------------------------------------------

    @property
    def element(self) -> str:
        return self.v.element

    @property
    def is_float(self) -> bool:
        return not self.v.element.startswith("i")

    def of(self, other: E | Number) -> E:
        """A number as a constant of this value's type."""
        return other if isinstance(other, E) else E(self.b, constant(other, self.v.type))

    def like(self, element: str) -> str:
        """The type with this value's lanes and another element."""
        return vector(element, self.v.lanes)

    def as_type(self, element: str) -> E:
        """The same bits read as another element type of the same width."""
        return E(self.b, self.b.bitcast(self.v, self.like(element)))

    def bits(self) -> E:
        """The bit pattern of a float."""
        return self.as_type({"float": "i32", "double": "i64", "half": "i16"}[self.element])

    def to(self, opcode: str, element: str) -> E:
        return E(self.b, self.b.convert(opcode, self.v, element))

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def _binary(self, float_opcode: str, int_opcode: str, other: E | Number) -> E:
        return E(self.b, self.b.binary(float_opcode if self.is_float else int_opcode, self.v, self.of(other).v))

    def __add__(self, other: E | Number) -> E:
        return self._binary("fadd", "add", other)

    def __sub__(self, other: E | Number) -> E:
        return self._binary("fsub", "sub", other)

    def __mul__(self, other: E | Number) -> E:
        return self._binary("fmul", "mul", other)

    def __truediv__(self, other: E | Number) -> E:
        return self._binary("fdiv", "sdiv", other)

    def __radd__(self, other: Number) -> E:
        return self.of(other) + self

    def __rsub__(self, other: Number) -> E:
        return self.of(other) - self

    def __rmul__(self, other: Number) -> E:
        return self.of(other) * self

    def __rtruediv__(self, other: Number) -> E:
        return self.of(other) / self

    def __neg__(self) -> E:
        return E(self.b, self.b.emit(self.v.type, f"fneg {self.v}")) if self.is_float else 0 - self

    def __abs__(self) -> E:
        return self.call("fabs")

    def copysign(self, sign: E) -> E:
        """This magnitude with that sign, by masks, which every target merges into one or two instructions."""
        width = {"float": 32, "double": 64}[self.element]
        top = -(1 << (width - 1))
        return ((self.bits() & ~top) | (sign.bits() & top)).as_type(self.element)

    def fma(self, factor: E | Number, addend: E | Number) -> E:
        """self * factor + addend, rounded once."""
        factor = self.of(factor)
        if not isinstance(addend, E):
            addend = E(self.b, self.b.addend(addend, self.v.type))
        if "fma" not in self.b.module.lacks:
            return self.call("fma", factor, addend)
        # LLVM would call the C library's function lane by lane. The product of two floats is exact in double; what is
        # computed in double has digits to spare, since its results are floats.
        x, y, z = (value.to("fpext", "double") for value in (self, factor, addend))
        return (x * y + z).to("fptrunc", self.element)

    def call(self, intrinsic: str, *others: E) -> E:
        """An LLVM intrinsic overloaded on this value's type."""
        return E(self.b, self.b.intrinsic(intrinsic, self.v, *(other.v for other in others)))

    # -- bits ------------------------------------------------------------------------------------------------------

    def op(self, opcode: str, other: E | Number) -> E:
        """An instruction that has no operator here: `x.op("ashr", 4)`."""
        return E(self.b, self.b.binary(opcode, self.v, self.of(other).v))

    def __and__(self, other: E | Number) -> E:
        return self.op("and", other)

    def __or__(self, other: E | Number) -> E:
        return self.op("or", other)

    def __xor__(self, other: E | Number) -> E:
        return self.op("xor", other)

    def __lshift__(self, other: E | Number) -> E:
        return self.op("shl", other)

    def __rshift__(self, other: E | Number) -> E:
        """Logical shift; `op("ashr", n)` keeps the sign."""
        return self.op("lshr", other)

    # -- conditions ------------------------------------------------------------------------------------------------

    def compare(self, predicate: str, other: E | Number) -> E:
        emit = self.b.fcmp if self.is_float else self.b.icmp
        return E(self.b, emit(predicate, self.v, self.of(other).v))

    def select(self, yes: E | Number, no: E | Number) -> E:
        """Where this boolean holds `yes`, else `no`; one of them is a value."""
        if not isinstance(yes, E):
            assert isinstance(no, E)
            yes = no.of(yes)
        return E(self.b, self.b.select(self.v, yes.v, yes.of(no).v))

    def any(self) -> V:
        """Whether a boolean holds in some lane."""
        return (
            self.v if self.v.lanes == 1 else self.b.call(f"llvm.vector.reduce.or.{mangle(self.v.type)}", "i1", self.v)
        )


def horner(x: E, coefficients: Sequence[float]) -> E:
    """c0 + c1*x + c2*x² + ..., the coefficients from the lowest."""
    total = x.of(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total.fma(x, coefficient)
    return total


def iterate(
    state: Sequence[E], going: Callable[[Sequence[E]], E], step: Callable[[Sequence[E]], Sequence[E]]
) -> list[E]:
    """`while any(going(state)): state = step(state)` for all lanes together; a finished lane must step to itself."""
    b = state[0].b
    before, head, body, after = b.block, b.label("head"), b.label("body"), b.label("after")
    variables = [E(b, V(first.v.type, b.fresh())) for first in state]
    b.branch(head)
    b.start(head)
    position = len(b.lines)
    b.lines += [""] * len(variables)
    b.branch_if(going(variables).any(), body, after)
    b.start(body)
    nexts = step(variables)
    latch = b.block
    b.branch(head)
    for offset, (variable, first, next_) in enumerate(zip(variables, state, nexts, strict=True)):
        phi = f"phi {variable.v.type} [ {first.v.name}, %{before} ], [ {next_.v.name}, %{latch} ]"
        b.lines[position + offset] = f"  {variable.v.name} = {phi}"
    b.start(after)
    return variables


def when_any(condition: E, values: Sequence[E], otherwise: Callable[[], Sequence[E]]) -> list[E]:
    """`values`, unless the condition holds in some lane: then what `otherwise` computes, in a branch of its own."""
    b = condition.b
    before, rare, after = b.block, b.label("rare"), b.label("after")
    b.branch_if(condition.any(), rare, after)
    b.start(rare)
    others = otherwise()
    latch = b.block
    b.branch(after)
    b.start(after)
    return [
        E(b, b.emit(x.v.type, f"phi {x.v.type} [ {x.v.name}, %{before} ], [ {other.v.name}, %{latch} ]"))
        for x, other in zip(values, others, strict=True)
    ]
