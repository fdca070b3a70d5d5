"""What imports meet: the targets of captured graphs, and those that were left to torch, with the user's line."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from weft.runtime.record import Fallback as Fallback
from weft.runtime.record import note_fallback_here

log = logging.getLogger("weft")


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


def note_fallback(target: str, fallback: Fallback) -> None:
    """A target was left to torch."""
    log.info("left to torch: %s", fallback)
    note_fallback_here(fallback)
    for record in _records:
        record.opaque.add(target)
        record.fallbacks.append(fallback)


def shape_guards(inputs: Iterable[Any]) -> list[str]:
    """What tracing has assumed so far of the symbolic sizes among a graph's inputs."""
    for value in inputs:
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                environment = cast(Any, size).node.shape_env
                return list(dict.fromkeys(str(guard.expr) for guard in environment.guards))
    return []
