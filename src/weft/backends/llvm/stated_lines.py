"""Reads what assembly and PTX say of source lines, and shows each line of the program above what came of it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LINE = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_START, _END = re.compile(r"\s*\.cfi_startproc|\{"), re.compile(r"\s*\.cfi_endproc|\}")
_DIRECTIVE = re.compile(r"\s*(?:$|[.#{})]|//|[$\w.\"]+:)")
_OF_LINES = re.compile(
    r"\s*(?:\.(?:loc|file|cfi_\w+)\b|\.section\s+\.debug_macinfo|[$.]L_*(?:tmp|func_begin|func_end)\d+:)"
)
_TABLES = re.compile(r"\s*\.section\s+\.debug_(?!macinfo)")


@dataclass(frozen=True)
class Stated:
    """A line of assembly or PTX, and where it comes from: line 0 where that is not stated."""

    text: str
    is_instruction: bool
    file: str
    line: int


def stated_lines(text: str) -> Iterator[Stated]:
    """The text line by line, without the directives that state where it comes from."""
    files = {number: f"{folder}/{name}" if name else folder for number, folder, name in _FILE.findall(text)}
    file, line, inside = "", 0, False
    for each in text.splitlines():
        if _TABLES.match(each):
            return
        if (found := _LINE.match(each)) is not None:
            file, line = files.get(found[1], ""), int(found[2])
        elif _START.match(each):
            inside = True
        elif _END.match(each):
            line, inside = 0, False
        if not _OF_LINES.match(each):
            yield Stated(each, inside and not _DIRECTIVE.match(each), file, line)


def without_lines(text: str) -> str:
    """Assembly or PTX without what says which lines it comes from."""
    return "\n".join(each.text for each in stated_lines(text) if each.text)


def with_source(text: str) -> str:
    """Assembly or PTX with the lines of the program as comments, each above what came of it; else as it is."""
    if "\t.loc\t" not in text:
        return text
    comment, shown, lines = "//" if ".visible .entry" in text else "#", ("", 0), list[str]()
    for each in stated_lines(text):
        if each.is_instruction and each.line and (each.file, each.line) != shown:
            shown = each.file, each.line
            source = linecache.getline(*shown).strip()
            lines.append(f"{comment} {PurePath(each.file).name}:{each.line}  {source}".rstrip())
        lines.append(each.text)
    return "\n".join(lines) + "\n"
