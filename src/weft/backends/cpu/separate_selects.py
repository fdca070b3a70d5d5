"""Keeps a choice between integers apart from the bits that are put together for it: LLVM 22 joins the two wrongly.

    %b = and <16 x i32> %x, splat (i32 -2147483648)
    %o = or <16 x i32> %b, %a
    %s = select <16 x i1> %c, <16 x i32> %o, <16 x i32> %x

AVX-512 has an instruction for all of this, whose operands have an order. Where one is a number in memory and another is
what is kept under the mask, LLVM permutes the operands and not the table of the function: results are garbage (a sign
that is copied, in `log1p` of bf16). As two choices between a value and zero, which are joined, it is right:

    %yes.s = select <16 x i1> %c, <16 x i32> %o, <16 x i32> zeroinitializer
    %no.s = select <16 x i1> %c, <16 x i32> zeroinitializer, <16 x i32> %x
    %s = or <16 x i32> %yes.s, %no.s
"""

from __future__ import annotations

import re

_VALUE = r"(?:%[\w.]+|zeroinitializer|splat \([^)]*\)|<[^>]*>)"
_TYPE = r"<\d+ x i(?:32|64)>"
_DEFINED = re.compile(rf"^ *(%[\w.]+) = (?:and|or|xor)(?: disjoint)? {_TYPE} ({_VALUE}), ({_VALUE})", re.MULTILINE)
_SELECT = re.compile(
    rf"^ *(%[\w.]+) = select (<\d+ x i1>) (%[\w.]+), ({_TYPE}) ({_VALUE}), {_TYPE} ({_VALUE})(, !dbg !\d+)?$",
    re.MULTILINE,
)


def separate_selects(text: str) -> str | None:
    """The text of a module with such choices taken apart; None where it has none."""
    defined = {found[1]: (found[2], found[3]) for found in _DEFINED.finditer(text)}
    changed = False

    def is_assembled(value: str) -> bool:
        return any(part in defined for part in defined.get(value, ()))

    def separated(found: re.Match[str]) -> str:
        nonlocal changed
        result, bits, condition, type_, yes, no, line = found.groups(default="")
        if not (is_assembled(yes) or is_assembled(no)):
            return found[0]
        changed = True
        name = result[1:]  # which may be a number, that a name does not begin with
        return (
            f"  %yes.{name} = select {bits} {condition}, {type_} {yes}, {type_} zeroinitializer{line}\n"
            f"  %no.{name} = select {bits} {condition}, {type_} zeroinitializer, {type_} {no}{line}\n"
            f"  {result} = or {type_} %yes.{name}, %no.{name}{line}"
        )

    made = _SELECT.sub(separated, text)
    return made if changed else None
