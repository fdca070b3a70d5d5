"""The kinds of random programs: how one is drawn from a seed, judged, shrunk and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.testing.fuzz.verdict import Verdict

Case = Any
"""A program of some kind: `to_json` and `script(said)` are what all have."""


@dataclass(frozen=True)
class Kind:
    """What a kind of program can do."""

    draw: Callable[[int, str], Case]
    judge: Callable[[Case], Verdict]
    shrink: Callable[[Case, Callable[[Case], bool], float], Case]
    read: Callable[[dict[str, Any]], Case]


NAMES = ("torch", "graph", "triton", "nnsmith")


def kind_named(name: str) -> Kind:
    """A kind by its name; what it needs is imported now."""
    if name == "torch":
        from weft.testing.fuzz.shrink import shrink
        from weft.testing.fuzz.torch_case import TorchCase
        from weft.testing.fuzz.torch_judge import judge
        from weft.testing.fuzz.torch_programs import draw_case

        return Kind(draw_case, judge, shrink, TorchCase.from_json)
    raise ValueError(f"no kind of program is called {name}")
