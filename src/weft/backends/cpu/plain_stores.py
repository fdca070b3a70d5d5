"""Keeps a choice between a new and an old value of memory apart from its store: LLVM 22 makes a masked store of both.

    %old = load <16 x float>, ptr %p
    %new = select <16 x i1> %c, <16 x float> %x, <16 x float> %old
    store <16 x float> %new, ptr %p

`vmaskmovps` writes memory in dozens of steps on AMD's processors, and what a masked store has written is not handed on
to the loads behind it: those of a tile that a loop carries. LLVM leaves volatile stores as they are.
"""

from __future__ import annotations

import re

_VECTOR = r"<\d+ x (?:i32|i64|float|double)>"
_PLACED = re.compile(r"^ *(%[\w.]+) = (getelementptr [^!\n]*?)(?:, !dbg !\d+)?$", re.MULTILINE)
_LOADED = re.compile(rf"^ *(%[\w.]+) = load {_VECTOR}, ptr ([%@][\w.]+),", re.MULTILINE)
_CHOSEN = re.compile(
    rf"^ *(%[\w.]+) = select <\d+ x i1> .*, {_VECTOR} (\S+), {_VECTOR} ([^\s,]+)(?:,.*)?$", re.MULTILINE
)
_STORED = re.compile(rf"^( *store )({_VECTOR} (%[\w.]+), ptr ([%@][\w.]+),)", re.MULTILINE)


def keep_stores_plain(text: str) -> str | None:
    """The text of a module whose stores of such choices stay stores; None where it has none."""
    if not _CHOSEN.search(text):
        return None
    functions = re.split(r"(?m)^(?=define )", text)
    kept = [_kept(function) for function in functions]
    return "".join(kept) if kept != functions else None


def _kept(function: str) -> str:
    placed = dict(_PLACED.findall(function))
    loaded = {name: placed.get(place, place) for name, place in _LOADED.findall(function)}
    chosen = {name: {yes, no} & loaded.keys() for name, yes, no in _CHOSEN.findall(function)}

    def stored(found: re.Match[str]) -> str:
        store, rest, value, place = found.groups()
        old = {loaded[name] for name in chosen.get(value, ())}
        return f"{store}volatile {rest}" if placed.get(place, place) in old else found[0]

    return _STORED.sub(stored, function)
