"""Where Dynamo had to cut a function in several graphs, and why: a part of what `weft explain` says."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

_BRANCH = (
    "Data-dependent branching\n"
    "  Explanation: an `if`, a `while` or an `assert` asks for the value of a tensor, known only when the graph ran.\n"
    "  Hint: use torch.where, torch.cond or torch._assert_async."
)


class GraphBreaks:
    """Counts the graph breaks from here on, as far as Dynamo is loaded."""

    def __init__(self) -> None:
        self._counted, self._reasons = _counted(), len(_reasons())

    def since(self) -> Counter[str]:
        """Why, and in which line, graphs were cut since, and how often.

        Dynamo counts what it cannot trace, also where that left no graph at all; that a branch has cut one it only
        notes with the graphs.
        """
        reasons = _reasons()
        new = reasons[self._reasons :] if len(reasons) >= self._reasons else reasons  # a reset forgets those before
        counted = _counted() - self._counted
        found = Counter(_text(reason) for reason in new)
        return found + (counted - Counter(str(reason.reason) for reason in new))


def _text(reason: Any) -> str:
    text: str = _BRANCH if reason.reason.startswith("generic_jump") else reason.reason
    frame = reason.user_stack[-1] if reason.user_stack else None
    first, newline, rest = text.partition("\n")
    return text if frame is None else f"{first} at {frame.filename}:{frame.lineno}{newline}{rest}"


def _counted() -> Counter[str]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return Counter() if dynamo is None else Counter(dynamo.counters["graph_break"])


def _reasons() -> list[Any]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return [] if dynamo is None else dynamo.graph_break_reasons
