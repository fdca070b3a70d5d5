"""Line tables of a module: which line of the user's program each instruction comes from, as LLVM's metadata.

An instruction made for a graph op looks like one of a function of the op's name that was inlined where the user wrote
it, so that profilers and disassemblers show the line and the op. Nothing else changes: LLVM makes the same code with
line tables and without.
"""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

import llvmlite.binding as llvm
from xdsl.dialects.builtin import FileLineColLoc, LocationAttr

from weft.ir.locations import file_line, op_named

Tables: TypeAlias = Literal["", "LineTablesOnly", "DebugDirectivesOnly"]
"""What a module has: nothing, tables in sections of their own, or `.loc` lines and no more, which is what PTX takes."""

_UNIT = 'distinct !DICompileUnit(language: DW_LANG_Python, file: !1, producer: "weft", isOptimized: true, '
_FLAGS = ('!{i32 2, !"Debug Info Version", i32 3}', '!{i32 2, !"Dwarf Version", i32 4}')


@dataclass
class DebugLines:
    """The metadata of one module under construction. `current` is what instructions are being made for."""

    tables: Tables
    current: LocationAttr | None = None
    _nodes: dict[str, int] = field(default_factory=dict[str, int])
    _places: dict[tuple[int, LocationAttr], int] = field(default_factory=dict[tuple[int, LocationAttr], int])

    def __post_init__(self) -> None:
        self._node(f"{_UNIT}runtimeVersion: 0, emissionKind: {self.tables})")
        self._file("weft")
        self._node("!DISubroutineType(types: !3)")
        self._node("!{}")

    def subprogram(self, name: str, place: FileLineColLoc) -> int:
        """A function, one of the module's or a graph op, by number."""
        file, line = self._file(place.filename.data), place.line.data
        return self._node(
            f"distinct !DISubprogram(name: {_quoted(name)}, scope: !{file}, file: !{file}, line: {line}, "
            f"scopeLine: {line}, type: !2, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !0)"
        )

    def instruction(self, function: int, location: LocationAttr) -> int:
        """The debug location of instructions in a function, by number."""
        if (function, location) not in self._places:
            place = file_line(location)
            assert place is not None
            # A function may have code of several files: of all that its kernel does.
            block = f"distinct !DILexicalBlockFile(scope: !{function}, file: !{self._file(place.filename.data)}, "
            found = self._location(place, self._node(f"{block}discriminator: 0)"))
            if name := op_named(location):
                found = self._location(place, self.subprogram(name, place), f", inlinedAt: !{found}")
            self._places[function, location] = found
        return self._places[function, location]

    def __str__(self) -> str:
        """The metadata, for the end of the module."""
        count = len(self._nodes)
        numbered = [f"!{number} = {node}" for number, node in enumerate((*self._nodes, *_FLAGS))]
        return "\n".join([*numbered, "!llvm.dbg.cu = !{!0}", f"!llvm.module.flags = !{{!{count}, !{count + 1}}}"])

    def _location(self, place: FileLineColLoc, scope: int, inlined: str = "") -> int:
        at = f"line: {place.line.data}, column: {max(place.column.data, 1)}"
        return self._node(f"!DILocation({at}, scope: !{scope}{inlined})")

    def _file(self, name: str) -> int:
        folder, _, base = name.rpartition("/")
        return self._node(f"!DIFile(filename: {_quoted(base)}, directory: {_quoted(folder)})")

    def _node(self, text: str) -> int:
        return self._nodes.setdefault(text, len(self._nodes))


class Origins:
    """Where the instructions of one function come from: places, each from a line of its text on."""

    def __init__(self, debug: DebugLines) -> None:
        self._debug = debug
        self._marks = [(0, debug.current)]

    def mark(self, line: int, location: LocationAttr | None) -> LocationAttr | None:
        """Instructions from a line on come from a place; gives what was said of those before."""
        before = self._debug.current
        if location is not None and location != before:
            self._debug.current = location
            self._marks.append((line, location))
        return before

    def annotate(self, name: str, lines: list[str], before: int) -> str:
        """Write the place of each instruction behind it; gives the function's own. `before` lines had no marks."""
        first = next((place for _, location in self._marks if (place := file_line(location)) is not None), None)
        if first is None:
            return ""
        function, start = self._debug.subprogram(name, first), 0
        ends = [line + before for line, _ in self._marks[1:]]
        for (_, location), end in zip(self._marks, [*ends, len(lines)], strict=True):
            known = first if location is None or file_line(location) is None else location
            place = self._debug.instruction(function, known)
            for number in range(start, end):
                if lines[number].startswith(" "):  # no label
                    lines[number] += f", !dbg !{place}"
            start = end
        return f" !dbg !{function}"


def has_lines(text: str) -> bool:
    """Whether a module says which lines its instructions are of."""
    return text.rfind("\n!llvm.dbg.cu") >= 0


@lru_cache(maxsize=1)
def keep_lines() -> None:
    """Let LLVM not take lines away from instructions, which it does for debuggers that step from line to line.

    One that two lines share has the line of one of them, and one that LLVM puts between others (a spill, a constant)
    that of the one before it.
    """
    for option in ("-pick-merged-source-locations", "-use-unknown-locations=Disable"):
        llvm.set_option("weft", option)


def _quoted(text: str) -> str:
    """A string of LLVM's: all but plain characters are written as their bytes."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in text.encode())
    return f'"{"".join(plain)}"'
