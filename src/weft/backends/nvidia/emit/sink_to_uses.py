"""Instruction sinking: values are computed where they are first read, which lowers the register pressure.

A tile's op is written for all of a thread's elements before the next op is, so that all elements of a chain of ops are
alive at once. What has no effect but its value moves down to the first line that needs it:

    %x1 = fmul ...                            %x1 = fmul ...
    %x2 = fmul ...                            %y1 = call float asm "ex2 ..."(float %x1)
    %y1 = call float asm "ex2 ..."(%x1)  →    call void asm sideeffect "st.global ..."(float %y1)
    %y2 = call float asm "ex2 ..."(%x2)       %x2 = fmul ...
    call void asm sideeffect "st ..."(%y1)    %y2 = call float asm "ex2 ..."(float %x2)
    call void asm sideeffect "st ..."(%y2)    call void asm sideeffect "st.global ..."(float %y2)

Loads, stores, barriers and whatever else is ordered stay in their order, and nothing leaves its block. The assembler
orders instructions anew for latency, within what registers it takes from this order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

_DEFINED = re.compile(r"\s+(%[\w.]+) = (\w+)")
_NAME = re.compile(r"%[\w.]+")
_INTRINSIC = re.compile(
    r"@llvm\.(?:fma|fmuladd|fabs|copysign|min\w*|max\w*|smin|smax|umin|umax|abs|sqrt|floor|ceil|trunc|rint|ctpop|fshl|fshr)\."
)
_FLOAT_ARITHMETIC = ("fadd", "fsub", "fmul", "fdiv", "fneg", "fcmp")
_INTEGER_ARITHMETIC = ("add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "select")
_INTEGER_CONVERSIONS = ("zext", "sext", "trunc", "bitcast", "ptrtoint", "inttoptr")
_FLOAT_CONVERSIONS = ("fptrunc", "fpext", "sitofp", "uitofp", "fptosi", "fptoui")
_PARTS = ("extractvalue", "extractelement", "insertelement", "getelementptr")
_MOVES = frozenset((*_FLOAT_ARITHMETIC, *_INTEGER_ARITHMETIC, *_INTEGER_CONVERSIONS, *_FLOAT_CONVERSIONS, *_PARTS))
"""Instructions without an effect but their value."""


def sink_to_uses(lines: list[str]) -> list[str]:
    """The lines of a function, those without effects behind one another as they are first read."""
    uses = Counter(name for line in lines for name in _NAME.findall(line))  # where it is defined counts as well
    result, start = list[str](), 0
    for number, line in enumerate([*lines, ":"]):
        if line.endswith(":"):
            result += _Block(lines[start:number], uses).sunk()
            result += lines[number : number + 1]
            start = number + 1
    return result


class _Block:
    """A basic block that is written anew, line by line."""

    def __init__(self, lines: list[str], uses: Counter[str]) -> None:
        self.lines, self.left, self.result = lines, uses, list[str]()
        self.names = [_NAME.findall(line) for line in lines]
        self.movable: dict[str, int] = {}
        """Where what is not written yet stands."""
        self.unwritten = {match[1] for line in lines if (match := _DEFINED.match(line)) is not None}
        self.readers = defaultdict[str, list[str]](list)
        for number, line in enumerate(lines):
            match = _DEFINED.match(line)
            if match is not None and _moves(match[2], line):
                self.movable[match[1]] = number
                for name in self.names[number][1:]:
                    self.readers[name].append(match[1])

    def sunk(self) -> list[str]:
        moved = set(self.movable.values())
        for number in range(len(self.lines)):
            if number in moved:
                continue
            if number == len(self.lines) - 1:  # other blocks may read what is left
                self._place(list(self.movable))
            if not self._is_phi(number):  # what that reads is of other blocks, or of the turn before
                self._place(self.names[number])
            self._write(number)
        self._place(list(self.movable))
        return self.result

    def _place(self, names: list[str]) -> None:
        """Write values, each after all it reads that is not written yet."""
        stack = [(name, False) for name in reversed(names)]
        while stack:
            name, ready = stack.pop()
            number = self.movable.get(name)
            if number is None:
                continue
            if ready:
                del self.movable[name]
                self._write(number)
            else:
                stack.append((name, True))
                stack += [(each, False) for each in reversed(self.names[number][1:])]

    def _write(self, number: int) -> None:
        """Write a line, and whatever can follow that is the last to read a value: that takes no further register."""
        waiting = [number]
        while waiting:
            number = waiting.pop()
            self.result.append(self.lines[number])
            self.unwritten.difference_update(self.names[number][:1])
            for name in self.names[number]:
                self.left[name] -= 1
            if self._is_phi(number):  # nothing stands between them
                continue
            for name in self.names[number]:
                if self.left[name] == 1:
                    waiting += self._last_reader(name)

    def _is_phi(self, number: int) -> bool:
        return " = phi " in self.lines[number]

    def _last_reader(self, name: str) -> list[int]:
        for reader in self.readers[name]:
            number = self.movable.get(reader)
            if number is not None:
                if any(each in self.unwritten for each in self.names[number][1:]):
                    return []
                del self.movable[reader]
                return [number]
        return []


def _moves(opcode: str, line: str) -> bool:
    """Whether a line does nothing but compute a value from others."""
    if opcode != "call":
        return opcode in _MOVES
    return ' asm "' in line or _INTRINSIC.search(line) is not None
