"""`tl.inline_asm_elementwise`: PTX over the elements of tensors.

One run of the assembly takes `pack` elements of each tensor, and which ones is left open: here each run takes the same
element `pack` times and gives its first result, which is right for whatever computes its elements one by one. Elements
of less than 32 bits share registers, as they do there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.frontends.triton.errors import KernelTypeError, KernelUnsupportedError, KernelValueError
from weft.frontends.triton.inline_ptx.assembly import Guard, Instruction, Literal, Operand, Register, Vector, parse
from weft.frontends.triton.inline_ptx.instructions import (
    COUNTS,
    PAIRS,
    SEMANTICS,
    SIGNED_COUNTS,
    TYPES,
    UNSIGNED,
    compared,
    convert,
    lop3,
    number,
)
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import where
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.promotion import broadcast_all, constant
from weft.frontends.triton.language.types import dtype
from weft.frontends.triton.language.values import tensor


def assembled(text: str, constraints: str, args: Sequence[tensor], results: Sequence[dtype], pack: int) -> list[tensor]:
    """The results of an assembly text on each element."""
    args = broadcast_all(*args) if args else []
    outputs, inputs = _constraints(constraints)
    places = [_register_count(element, pack) for element in results]
    given = [_register_count(value.dtype, pack) for value in args]
    if (len(outputs), len(inputs)) != (sum(places), sum(given)):
        raise KernelValueError(
            f"the assembly has {len(outputs)} output and {len(inputs)} input registers, and its tensors take"
            f" {sum(places)} and {sum(given)}",
            hint=f"with pack={pack}, each tensor takes one register for every {pack} elements or 32 bits",
        )
    machine = _Machine(args[0].sides if args else ())
    number_of = len(outputs)
    for value, count in zip(args, given, strict=True):
        for _ in range(count):
            machine.registers[f"${number_of}"] = _filled(value, pack)
            number_of += 1
    for place, constraint in enumerate(inputs):
        if constraint.isdigit():  # the input is in the register of an output
            machine.registers[f"${constraint}"] = machine.registers[f"${len(outputs) + place}"]
    for instruction in parse(text.replace("$$", "$")):
        machine.run(instruction)
    first = [sum(places[:place]) for place in range(len(results))]
    return [machine.result(f"${place}", element, pack) for place, element in zip(first, results, strict=True)]


def _constraints(text: str) -> tuple[list[str], list[str]]:
    parts = [part.strip() for part in text.split(",") if part.strip() and not part.strip().startswith("~")]
    outputs = [part for part in parts if part.startswith("=")]
    inputs = parts[len(outputs) :]
    for part in parts:
        if not re.fullmatch(r"=?&?[hrlfd]|\d+", part):
            raise KernelUnsupportedError(
                f"the constraint {part!r} of an assembly is not supported",
                hint="h, r and l are registers of 16, 32 and 64 bits, f and d of floats, =r is one that is written",
            )
    return outputs, inputs


def _shared(element: dtype, pack: int) -> int:
    """How many elements are in a register."""
    return min(max(32 // element.primitive_bitwidth, 1), pack)


def _register_count(element: dtype, pack: int) -> int:
    if element.is_ptr() or element.is_bool():
        raise KernelTypeError(f"assembly takes and gives numbers, not {element}", hint="cast it to an integer")
    return -(-pack // _shared(element, pack))


def _filled(value: tensor, pack: int) -> tensor:
    """A register that holds an element as often as it has room for."""
    width, times = value.dtype.primitive_bitwidth, _shared(value.dtype, pack)
    word = same_bits(value, UNSIGNED[width])
    if times == 1:
        return word
    wide = converted(word, UNSIGNED[width * times], None)
    return wide * sum(1 << (width * place) for place in range(times))


class _Machine:
    """Registers, and what instructions do to them."""

    def __init__(self, sides: Sequence[int]) -> None:
        self.sides = sides
        self.registers: dict[str, tensor] = {}

    def run(self, op: Instruction) -> None:
        """Carry out one instruction, where its guard holds."""
        target, *sources = op.operands or (None,)
        if target is None or isinstance(target, Literal):
            raise _unsupported(op)
        match op.name:
            case "mov" if isinstance(target, Vector):
                self._unpack(op, target, sources[0])
            case "mov" if isinstance(sources[0], Vector):
                self._write(op.guard, target, self._packed(op, sources[0]))
            case "setp":
                self._compare(op, target, sources)
            case "selp":
                a, b, chosen = sources
                element = _type(op)
                picked = where(self._read(chosen, types.int1), self._read(a, element), self._read(b, element))
                self._write(op.guard, target, picked)
            case "cvt":
                self._write(op.guard, target, self._convert(op, sources))
            case "lop3":
                *args, table = sources
                if not isinstance(table, Literal):
                    raise _unsupported(op)
                words = [self._read(arg, types.uint32) for arg in args]
                self._write(op.guard, target, lop3(words, int(number(table.text, types.uint32))))
            case name if name in SEMANTICS:
                self._write(op.guard, target, self._apply(op, sources))
            case _:
                raise _unsupported(op)

    def _apply(self, op: Instruction, sources: Sequence[Operand]) -> tensor:
        pair = next((name for name in op.modifiers if name in PAIRS), None)
        compute = SEMANTICS[op.name]
        if pair is not None:
            element = PAIRS[pair]
            halves = [self._halves(source, element) for source in sources]
            results = [compute(op, element, [both[half] for both in halves]) for half in (0, 1)]
            return _joined(results)
        element = _type(op)
        kinds = dict.fromkeys(COUNTS.get(op.name, ()), types.uint32)
        kinds |= dict.fromkeys(SIGNED_COUNTS.get(op.name, ()), types.int32)
        args = [self._read(source, kinds.get(place, element)) for place, source in enumerate(sources)]
        if op.name == "mad" and "wide" in op.modifiers:
            wide = types.int64 if element.is_int_signed() else types.uint64
            args[2] = self._read(sources[2], wide)
        return compute(op, element, args)

    def _compare(self, op: Instruction, target: Operand, sources: Sequence[Operand]) -> None:
        comparison = op.modifiers[0] if op.modifiers else ""
        if len(sources) != 2:
            raise _unsupported(op)
        element = _type(op)
        self._write(op.guard, target, compared(comparison, *(self._read(source, element) for source in sources)))

    def _convert(self, op: Instruction, sources: Sequence[Operand]) -> tensor:
        named = [name for name in op.modifiers if name in TYPES or name in PAIRS]
        if len(named) != 2:
            raise _unsupported(op)
        to, of = named
        if to in PAIRS and of in PAIRS:
            return _joined([convert(op, PAIRS[to], half) for half in self._halves(sources[0], PAIRS[of])])
        if to in PAIRS:  # the first operand becomes the upper half
            high, low = (self._read(source, TYPES[of]) for source in sources)
            return _joined([convert(op, PAIRS[to], value) for value in (low, high)])
        if of in PAIRS:
            raise _unsupported(op)
        return convert(op, TYPES[to], self._read(sources[0], TYPES[of]))

    def _halves(self, source: Operand, element: dtype) -> list[tensor]:
        width = element.primitive_bitwidth
        word = self._read(source, UNSIGNED[2 * width])
        return [same_bits(converted(word >> (width * half), UNSIGNED[width], None), element) for half in (0, 1)]

    def _packed(self, op: Instruction, vector: Vector) -> tensor:
        whole = _type(op)
        width = whole.primitive_bitwidth // len(vector.parts)
        return same_bits(_joined([self._read(part, UNSIGNED[width]) for part in vector.parts]), whole)

    def _unpack(self, op: Instruction, vector: Vector, source: Operand) -> None:
        whole = self._read(source, UNSIGNED[_type(op).primitive_bitwidth])
        width = whole.dtype.primitive_bitwidth // len(vector.parts)
        for place, part in enumerate(vector.parts):
            self._write(op.guard, part, converted(whole >> (width * place), UNSIGNED[width], None))

    def _read(self, operand: Operand, element: dtype) -> tensor:
        match operand:
            case Literal(text):
                return constant(number(text, element), element, self.sides)
            case Register(name) if name in self.registers:
                return _seen_as(self.registers[name], element)
            case Register(name):
                raise KernelValueError(f"the assembly reads {name.split('#')[0]} before it is written")
            case Vector():
                raise KernelUnsupportedError("a vector of registers is read by mov alone")

    def _write(self, guard: Guard | None, target: Operand, value: tensor) -> None:
        if not isinstance(target, Register):
            raise KernelValueError("the assembly writes to something that is no register")
        if guard is not None and target.name in self.registers:
            holds = self._read(guard.register, types.int1)
            before = _seen_as(self.registers[target.name], value.dtype)
            value = where(~holds if guard.negated else holds, value, before)
        self.registers[target.name] = value

    def result(self, name: str, element: dtype, pack: int) -> tensor:
        """What an output register holds in its lowest place, as an element."""
        if name not in self.registers:
            raise KernelValueError(f"the assembly does not write its output {name}")
        width = element.primitive_bitwidth * _shared(element, pack)
        word = _seen_as(self.registers[name], UNSIGNED[max(width, 8)])
        return same_bits(converted(word, UNSIGNED[element.primitive_bitwidth], None), element)


def _seen_as(value: tensor, element: dtype) -> tensor:
    """The bits of a register as a type; of a wider one the lower bits, and a narrower one is filled up with zeros."""
    if value.dtype.is_bool() or element.is_bool():
        return converted(value, element, None) if value.dtype.is_bool() != element.is_bool() else value
    width = value.dtype.primitive_bitwidth
    word = converted(same_bits(value, UNSIGNED[width]), UNSIGNED[element.primitive_bitwidth], None)
    return same_bits(word, element)


def _joined(parts: Sequence[tensor]) -> tensor:
    """Values side by side in one word, the first lowest."""
    width = parts[0].dtype.primitive_bitwidth
    whole = UNSIGNED[width * len(parts)]
    words = [converted(same_bits(part, UNSIGNED[width]), whole, None) for part in parts]
    result = words[0]
    for place, word in enumerate(words[1:], 1):
        result = result | (word << (width * place))
    return result


def _type(op: Instruction) -> dtype:
    named = [name for name in op.modifiers if name in TYPES]
    if not named:
        raise _unsupported(op)
    return TYPES[named[0] if op.name != "setp" else named[-1]]


def _unsupported(op: Instruction) -> KernelUnsupportedError:
    return KernelUnsupportedError(
        f"the instruction {op} is not supported in inline_asm_elementwise",
        hint="arithmetic, comparisons, bits and conversions of single elements are; memory and branches are tl's",
    )
