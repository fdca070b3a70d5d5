"""Loops as they are written: those that are long and have none inside do not show LLVM how their variable goes on."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr

from weft.backends.cpu.target import compile_assembly, host_target
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.debug_lines import DebugLines
from weft.backends.llvm.values import V, i64

LONG, SHORT = 150, 5


def written(length: int, *, nested: bool = False, hides_counters: bool = True, lines: bool = False) -> str:
    """A module whose function adds to an array, with so many lines in its loop, or in one around another."""
    module = Module(host_target().triple, debug=DebugLines("LineTablesOnly") if lines else None)
    f = Function(module, "f", [("ptr", "p"), ("i64", "n")], hides_counters=hides_counters)
    pointer, count = f.args
    f.made_for(FileLineColLoc(StringAttr("model.py"), IntAttr(12), IntAttr(5)))
    with f.loop(i64(0), count, i64(4)) as i:
        for lane in range(length):
            place = f.gep(pointer, f.add(i, i64(lane)), "float")
            f.store(V("float", "1.0"), place, 4)
        if nested:
            with f.loop(i64(0), count, i64(1)) as j:
                f.store(V("float", "2.0"), f.gep(pointer, j, "float"), 4)
    f.finish()
    return str(module)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (written(LONG), True),
        (written(LONG, lines=True), True),
        (written(SHORT), False),
        (written(LONG, nested=True), False),
        (written(LONG, hides_counters=False), False),
    ],
    ids=["long", "with debug lines", "short", "with a loop inside", "not asked for"],
)
def test_counters_of_long_innermost_loops_are_hidden(text: str, hidden: bool) -> None:
    assert ('asm ""' in text) == hidden
    assembly = compile_assembly(text, host_target())
    assert ("model.py" in assembly) == ("model.py" in text)
