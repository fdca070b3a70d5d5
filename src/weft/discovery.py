"""Finds targets by entry point: a package that states one in the group `weft.targets` adds it, and nothing else.

    [project.entry-points."weft.targets"]
    mine = "my_package.target:Mine"

Names are known without importing anything. What stands behind a name is imported when it is asked for, and one that
cannot be imported takes no other with it. Weft's own are in a table, too: they are found in a source tree that is not
installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from typing import Any

from weft.diagnostics import nearest, warn
from weft.errors import TargetError

GROUP = "weft.targets"
OWN: Mapping[str, str] = {
    "cpu": "weft.targets.cpu:Cpu",
    "nvidia": "weft.targets.nvidia:Nvidia",
    "reference": "weft.targets.reference:Reference",
}
"""Weft's own targets; pyproject.toml has the same."""


@lru_cache(maxsize=1)
def entry_points() -> Mapping[str, metadata.EntryPoint]:
    """The entry point of every target that is found, Weft's own first.

    Where two distributions state one name, the first on the path has it; Weft's own names are no one else's.
    """
    found = {name: metadata.EntryPoint(name, value, GROUP) for name, value in OWN.items()}
    for point in metadata.entry_points(group=GROUP):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            told = f"{point.value} is not used: {known.value} has that name"
            warn("targets", f"two targets are called {point.name!r}", told, "rename one, or remove its distribution")
    return found


def is_target(name: str) -> bool:
    """Whether a target has this name; those of Weft's own are known without a search."""
    return name in OWN or name in entry_points()


def load(name: str) -> Any:
    """What the entry point of a target names; an unknown one is an error that lists those that were found."""
    if not is_target(name):
        raise unknown_target(name)
    point = metadata.EntryPoint(name, OWN[name], GROUP) if name in OWN else entry_points()[name]
    try:
        return point.load()
    except Exception as error:  # another package's code: whatever is wrong with it
        origin = f" of {point.dist.name}" if point.dist is not None else ""
        raise TargetError(
            f"the target {name!r}{origin} cannot be loaded from {point.value}: {error!r}",
            hint="repair or remove the distribution that states it",
        ) from error


def load_all() -> dict[str, Any]:
    """All targets by name; those that cannot be loaded are left out, each with one warning."""
    loaded: dict[str, Any] = {}
    for name in entry_points():
        try:
            loaded[name] = load(name)
        except TargetError as error:
            warn("targets", error.message, advice=error.hint or "", cause=f"target {name}")
    return loaded


def unknown_target(name: str) -> TargetError:
    """The error for a name that no target has."""
    names = ", ".join(f"`{each}`" for each in sorted(entry_points()))
    return TargetError(
        f"no target is called {name!r}{nearest(name, entry_points())}",
        hint=f"there are {names}; `cpu` makes machine code for where the tensors lie, a GPU too",
    )
