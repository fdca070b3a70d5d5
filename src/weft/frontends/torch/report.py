"""What imports meet: the targets of captured graphs, and those that were left to torch, with the user's line."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from weft.config import Config
from weft.diagnostics import warn
from weft.errors import UnsupportedError
from weft.runtime.record import Fallback as Fallback
from weft.runtime.record import note_fallback_here

HOW_TO_DECIDE = 'options={"fallback": "error"} makes this an error, "quiet" leaves the message out'
HAS_EFFECTS, COPIES_AWAY = "it has effects", "it copies to another device"
_BY_DESIGN = (HAS_EFFECTS, COPIES_AWAY)


@dataclass
class TargetRecord:
    """The targets (`aten.add.Tensor`) of the graphs that came in while recording."""

    seen: set[str] = field(default_factory=set[str])
    opaque: set[str] = field(default_factory=set[str])
    """Those that became opaque calls or, in strict mode, were refused."""
    fallbacks: list[Fallback] = field(default_factory=list[Fallback])


_records: list[TargetRecord] = []


@contextmanager
def record_targets() -> Generator[TargetRecord]:
    """Collect the targets of every graph that is imported inside the `with`, on any thread."""
    record = TargetRecord()
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def note_targets(targets: Iterable[str]) -> None:
    """A graph with these targets came in."""
    met = set(targets)
    for record in _records:
        record.seen |= met


def note_fallback(target: str, fallback: Fallback, config: Config) -> None:
    """A target was left to torch, of which the user is told unless he wants no word of it, or it is torch's work."""
    if config.fallback == "warn" and not config.strict and not is_by_design(fallback):
        what = f"{fallback.target} is left to torch"
        warn("fallback", what, fallback.reason, HOW_TO_DECIDE, location=fallback.line, cause=fallback.target)
    _note(target, fallback)


def note_whole_graph(fallback: Fallback) -> None:
    """A graph was left to torch, of which the user has been told."""
    _note(fallback.target, fallback)


def _note(target: str, fallback: Fallback) -> None:
    note_fallback_here(fallback)
    for record in _records:
        record.opaque.add(target)
        record.fallbacks.append(fallback)


def is_by_design(fallback: Fallback) -> bool:
    """Whether torch is to do it, whatever Weft could compile."""
    return fallback.reason in _BY_DESIGN


def check_fallbacks(fallbacks: Sequence[Fallback], config: Config) -> None:
    """Raise if calls are left to torch that the configuration does not leave to it."""
    refused = [each for each in fallbacks if config.strict or not is_by_design(each)]
    if config.forbids_fallbacks and refused:
        first = refused[0]
        without = "strict" if config.strict else 'fallback="error"'
        raise UnsupportedError(
            f"{len(refused)} calls have no lowering, first {first.target}: {first.reason}",
            location=first.line,
            hint=f"without {without}, torch carries them out",
        )


def shape_guards(inputs: Iterable[Any]) -> list[str]:
    """What tracing has assumed so far of the symbolic sizes among a graph's inputs."""
    for value in inputs:
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                environment = cast(Any, size).node.shape_env
                return list(dict.fromkeys(str(guard.expr) for guard in environment.guards))
    return []
