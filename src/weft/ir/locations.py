"""Where in the user's program an op comes from: each op made on the way inherits the place of what it is made of.

Three rules give an op its location. One that is made with a location, or cloned, has it. One that is made while
`sourced(place)` holds takes that: lowerings and rewrites state so which op they are at. One that a pass puts before
another, and says nothing of, takes the place of what it was put before (`inherit_locations`).

A tile op's location names the graph op too, as MLIR writes it: `loc("graph.exp"("model.py":12:0))`.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache

from xdsl.dialects.builtin import FileLineColLoc, LocationAttr, NameLoc, StringAttr
from xdsl.ir import Operation


class _Current(threading.local):
    """What the ops are made of that a thread makes now."""

    location: LocationAttr | None = None


CURRENT = _Current()


@contextmanager
def sourced(location: LocationAttr | None) -> Generator[None]:
    """Ops that are made inside, and given no location, come from there."""
    outer, CURRENT.location = CURRENT.location, location
    try:
        yield
    finally:
        CURRENT.location = outer


def made_of(op: Operation) -> LocationAttr:
    """The location of what a graph op is lowered to: its own, with its name."""
    return _named(op.name, op.location)


@lru_cache(maxsize=4096)
def _named(name: str, location: LocationAttr) -> LocationAttr:
    return location if isinstance(location, NameLoc) else NameLoc(StringAttr(name), location)


def file_line(location: LocationAttr | None) -> FileLineColLoc | None:
    """The place in the user's program that a location states, None where it states none."""
    while isinstance(location, NameLoc):
        location = location.location  # type: ignore[assignment]
    return location if isinstance(location, FileLineColLoc) else None


def op_named(location: LocationAttr | None) -> str:
    """The graph op that a location names; empty where it names none."""
    return location.desc.data if isinstance(location, NameLoc) else ""


def line_of(location: LocationAttr | None) -> str | None:
    """A location as `file:line`, None where it is not known."""
    place = file_line(location)
    return None if place is None else f"{place.filename.data}:{place.line.data}"


def inherit_locations(op: Operation) -> None:
    """Give the ops inside that have no place that of the next one which has; at the end of a block, the last one's.

    An op with regions that has none takes that of the first inside.

        %a = tile.map …  loc("model.py":3)        %a = tile.map …  loc("model.py":3)
        %b = nvidia.convert %a             →      %b = nvidia.convert %a  loc("model.py":4)
        tile.store %b    loc("model.py":4)        tile.store %b    loc("model.py":4)
    """
    blocks = [list(block.ops) for region in op.regions for block in region.blocks]
    if file_line(op.location) is None:
        found = (inner.location for ops in blocks for inner in ops if file_line(inner.location) is not None)
        op.location = next(found, op.location)
    for ops in blocks:
        last = next((each.location for each in reversed(ops) if file_line(each.location) is not None), op.location)
        for each in reversed(ops):
            if each.regions:
                inherit_locations(each)
            if file_line(each.location) is None:
                each.location = last
            last = each.location
