"""Local and dominating value numbering while LLVM IR is written: what was computed before is not written again.

Address arithmetic of unrolled tiles repeats itself: two thirds of a kernel's text were copies, which LLVM takes seconds
to find in the largest ones. Here an instruction without effects is looked up by its text among those of its block and
of the blocks that dominate it:

    %v1 = mul i32 %a, 33                      %v1 = mul i32 %a, 33
    %v2 = add i32 %v1, 1             →        %v2 = add i32 %v1, 1
    %v3 = mul i32 %a, 33
    %v4 = add i32 %v3, 2                      %v4 = add i32 %v1, 2

A block's dominator is known as it begins: all that comes before it in the text has branched, and what branches back to
it later lies inside the loop that it begins.
"""

from __future__ import annotations

ENTRY = "entry"

_WITHOUT_EFFECTS = frozenset(
    [
        "add",
        "sub",
        "mul",
        "and",
        "or",
        "xor",
        "shl",
        "lshr",
        "ashr",
        "udiv",
        "sdiv",
        "urem",
        "srem",
        "icmp",
        "fadd",
        "fsub",
        "fmul",
        "fdiv",
        "fneg",
        "fcmp",
        "select",
        "zext",
        "sext",
        "trunc",
        "bitcast",
        "ptrtoint",
        "inttoptr",
        "fpext",
        "fptrunc",
        "sitofp",
        "uitofp",
        "fptosi",
        "fptoui",
        "getelementptr",
        "extractvalue",
        "insertvalue",
        "extractelement",
        "insertelement",
        "shufflevector",
    ]
)


class ValueNumbering:
    """The names of what the current block and those that dominate it have computed, by the text of the instruction."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._at_end: dict[str, dict[str, str]] = {}
        self._dominator: dict[str, str | None] = {ENTRY: None}
        self._before: dict[str, list[str]] = {}

    def find(self, text: str) -> str | None:
        """The name of a value that the instruction computes again."""
        return self._known.get(text)

    def note(self, text: str, name: str) -> None:
        """An instruction is written; those with effects are not remembered."""
        if text[: text.find(" ")] in _WITHOUT_EFFECTS:
            self._known[text] = name

    def branch(self, block: str, label: str) -> None:
        """The block goes on to another one."""
        self._before.setdefault(label, []).append(block)

    def start(self, ended: str, label: str) -> None:
        """A block begins where another has ended."""
        self._at_end[ended] = self._known
        dominator = self._common_dominator(self._before.get(label, []))
        self._dominator[label] = dominator
        self._known = dict(self._at_end[dominator])

    def _common_dominator(self, blocks: list[str]) -> str:
        """The nearest block through which all ways to these lead."""
        common = self._dominators(blocks[0]) if blocks else [ENTRY]
        for block in blocks[1:]:
            others = set(self._dominators(block))
            common = [each for each in common if each in others]
        return common[0]

    def _dominators(self, block: str) -> list[str]:
        """A block and those that dominate it, the nearest first."""
        found: list[str] = []
        at: str | None = block
        while at is not None:
            found.append(at)
            at = self._dominator[at]
        return found
