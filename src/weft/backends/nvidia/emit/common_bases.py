"""Sums of a common base with many unrelated addends, as gathers compute addresses: each few get a base of their own.

LLVM's straight-line strength reduction compares every sum with all before it that share an operand, and asks at length
whether each of them may be poison. It stops at the first that differs by a constant: elements side by side take it no
time. Elements at computed indices differ by nothing it finds, and 256 of them a thread took it 15 seconds. So where a
base has many such addends, it is copied for each few of them:

    %v1 = add i64 %base, %x1                  %c1 = call i64 asm "mov.b64 $0, $1;", "=l,l"(i64 %base)
    %v2 = add i64 %base, %x2                  %v1 = add i64 %c1, %x1
    ...                              →        %v2 = add i64 %c1, %x2
    %v99 = add i64 %base, %x99                ...
                                              %c7 = call i64 asm "mov.b64 $0, $1;", "=l,l"(i64 %base)
                                              %v99 = add i64 %c7, %x99

LLVM does not look into assembly; ptxas does, and lets all of them read the one register.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

MOST_ADDENDS = 64
"""Unrelated addends that a base may have: they are compared in some 0.2 s, and kernels with fewer stay as they were."""
_ADDENDS_OF_COPY = 16
"""Of a base that has more. The time grows with it, and the number of copies shrinks."""
_MOST_TERMS = 6
"""Of a sum that is told from others by its terms."""

_STEP = re.compile(r"  (%\w+) = (add|mul|shl|trunc)(?: n[su]w)* i\d+ (-?[%\w]+)(?:, (-?[%\w]+)| to i\d+)")
_SUM = re.compile(r"  (%\w+) = add (i32|i64) (%\w+), (%\w+)")

_Terms = tuple[str, ...]


def split_common_bases(lines: list[str]) -> list[str]:
    """The lines of a function, one for one, in which no value is added to many unrelated ones of a block."""
    sums = {number: match for number, line in enumerate(lines) if (match := _SUM.fullmatch(line)) is not None}
    if len(sums) <= MOST_ADDENDS:
        return lines
    terms = _terms_of_values(lines)
    addends: defaultdict[str, set[_Terms]] = defaultdict(set)
    for match in sums.values():
        for base, addend in ((match[3], match[4]), (match[4], match[3])):
            addends[base].add(terms.get(addend, (addend,)))
    common = {base for base, found in addends.items() if len(found) > MOST_ADDENDS}
    if not common:
        return lines
    result, copies = list[str](), dict[str, _Copy]()
    for number, line in enumerate(lines):
        if line.endswith(":"):  # a copy is there for its block only
            copies = {}
        result.append(_with_copies(sums[number], common, copies, number) if number in sums else line)
    return result


@dataclass
class _Copy:
    name: str
    uses: int = 0


def _with_copies(match: re.Match[str], common: set[str], copies: dict[str, _Copy], number: int) -> str:
    """A sum that reads copies of common bases, behind the copies that it is the first to read."""
    out, type_, *operands = match.groups()
    code, bits = ("r", "b32") if type_ == "i32" else ("l", "b64")
    made: list[str] = []
    for place, base in enumerate(operands):
        if base not in common:
            continue
        if base not in copies or copies[base].uses == _ADDENDS_OF_COPY:
            copies[base] = _Copy(f"%c{number}.{place}")
            made.append(
                f'  {copies[base].name} = call {type_} asm "mov.{bits} $0, $1;", "={code},{code}"({type_} {base})'
            )
        copies[base].uses += 1
        operands[place] = copies[base].name
    return "\n".join([*made, f"  {out} = add {type_} {', '.join(operands)}"])


def _terms_of_values(lines: list[str]) -> dict[str, _Terms]:
    """What values are sums of, but for constants and factors: those of equal terms differ by a constant.

    A sum that is made wider is a term by itself: whether it wraps around first is not known.
    """
    terms: dict[str, _Terms] = {}
    for line in lines:
        if (match := _STEP.match(line)) is None:
            continue
        out, opcode, a, b = match.groups()
        variables = [name for name in (a, b) if name is not None and name.startswith("%")]
        if opcode != "add" and len(variables) > 1:
            continue
        found = tuple(sorted(term for name in variables for term in terms.get(name, (name,))))
        if len(found) <= _MOST_TERMS:
            terms[out] = found
    return terms
