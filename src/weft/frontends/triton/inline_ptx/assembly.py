"""The text of inline PTX as instructions: straight-line code, each instruction perhaps guarded by a predicate.

    { .reg .pred p; setp.gt.f32 p, $1, 20.; @!p ex2.approx.ftz.f32 $0, $1; }

Registers that are declared in braces end with them: each gets a name of its own, so that two blocks may use the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from weft.frontends.triton.errors import KernelUnsupportedError, KernelValueError


@dataclass(frozen=True)
class Register:
    """A register by name; `$0` is the first operand of the assembly."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A number, as it is written."""

    text: str


Scalar: TypeAlias = Register | Literal


@dataclass(frozen=True)
class Vector:
    """Several registers side by side in one: `{low, high}`."""

    parts: tuple[Scalar, ...]


Operand: TypeAlias = Scalar | Vector


@dataclass(frozen=True)
class Guard:
    """Where an instruction takes effect: where a predicate is true, or where it is not."""

    register: Register
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """`@guard name.modifiers operands;`: the first operand is what it writes."""

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None

    def __str__(self) -> str:
        return ".".join([self.name, *self.modifiers])


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARATION = re.compile(r"\.reg\s*\.(\w+)\s+(.+)", re.DOTALL)
_RANGE = re.compile(r"([\w$%]+)\s*<\s*(\d+)\s*>")
_INSTRUCTION = re.compile(
    r"(?:@(?P<not>!?)\s*(?P<guard>[\w$%]+)\s+)?(?P<name>[a-z]\w*)(?P<modifiers>(?:\.\w+)*)(?P<operands>\s.*)?",
    re.DOTALL,
)
_OPERAND = re.compile(r"\{[^{}]*\}|[^,\s{}]+")
_NUMBER = re.compile(
    r"[-+]?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+U?|\d*\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)"
)
_REGISTER = re.compile(r"\$\d+|[A-Za-z_%][\w$]*")


def parse(text: str) -> list[Instruction]:
    """The instructions of an assembly text, in order."""
    return _Parser().parse(_COMMENT.sub(" ", text))


class _Parser:
    """Reads statements, and keeps the registers of the braces that are open."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, str]] = [{}]
        self.declared = 0
        self.instructions: list[Instruction] = []

    def parse(self, text: str) -> list[Instruction]:
        for statement in _statements(text):
            if statement == "{":
                self.scopes.append({})
            elif statement == "}":
                self.scopes.pop()
                if not self.scopes:
                    raise KernelValueError("the assembly closes a brace that it did not open")
            elif declared := _DECLARATION.fullmatch(statement):
                self._declare(declared[2])
            else:
                self.instructions.append(self._instruction(statement))
        if len(self.scopes) != 1:
            raise KernelValueError("the assembly opens a brace that it does not close")
        return self.instructions

    def _declare(self, names: str) -> None:
        for name in names.split(","):
            many = _RANGE.fullmatch(name.strip())
            for each in [f"{many[1]}{number}" for number in range(int(many[2]))] if many else [name.strip()]:
                self.declared += 1
                self.scopes[-1][each] = f"{each}#{self.declared}"

    def _instruction(self, statement: str) -> Instruction:
        found = _INSTRUCTION.fullmatch(statement)
        if found is None:
            raise KernelUnsupportedError(
                f"the assembly has {statement!r}, which is no instruction of straight-line PTX",
                hint="write branches as predicates (@p) or selp, or with tl.where",
            )
        guard = Guard(self._register(found["guard"], statement), found["not"] == "!") if found["guard"] else None
        operands = tuple(self._operand(text, statement) for text in _OPERAND.findall(found["operands"] or ""))
        return Instruction(found["name"], tuple(found["modifiers"].split(".")[1:]), operands, guard)

    def _operand(self, text: str, statement: str) -> Operand:
        if text.startswith("{"):
            return Vector(tuple(self._scalar(part.strip(), statement) for part in text[1:-1].split(",")))
        return self._scalar(text, statement)

    def _scalar(self, text: str, statement: str) -> Scalar:
        return Literal(text) if _NUMBER.fullmatch(text) else self._register(text, statement)

    def _register(self, name: str, statement: str) -> Register:
        for scope in reversed(self.scopes):
            if name in scope:
                return Register(scope[name])
        if re.fullmatch(r"\$\d+", name):
            return Register(name)
        raise KernelUnsupportedError(
            f"the assembly reads {name} in {statement!r}, which is neither an operand nor declared with .reg",
            hint="special registers and memory are not read by assembly of single elements: use tl.program_id, tl.load",
        )


def _statements(text: str) -> list[str]:
    """Braces that open and close blocks, and what ends with a semicolon; the braces of vectors stay in theirs."""
    found: list[str] = []
    rest = text.strip()
    while rest:
        if rest[0] in "{}":
            found.append(rest[0])
            rest = rest[1:].lstrip()
            continue
        statement, semicolon, rest = rest.partition(";")
        if not semicolon and "}" in statement:  # the last statement before a brace may lack its semicolon
            raise KernelValueError(f"the assembly ends {statement.strip()!r} without a semicolon")
        if statement.strip():
            found.append(statement.strip())
        rest = rest.lstrip()
    return found
