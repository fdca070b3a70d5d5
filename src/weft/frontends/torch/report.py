"""What imports meet: the targets of captured graphs, and those that were left to torch, with the user's line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

log = logging.getLogger("weft")


@dataclass(frozen=True)
class Fallback:
    """A call that torch carries out: which, where in the user's program, and why Weft does not."""

    target: str
    line: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.target} at {self.line or 'an unknown line'}: {self.reason}"


@dataclass
class TargetRecord:
    """The targets (`aten.add.Tensor`) of the graphs that came in while recording."""

    seen: set[str] = field(default_factory=set[str])
    opaque: set[str] = field(default_factory=set[str])
    """Those that became opaque calls or, in strict mode, were refused."""
    fallbacks: list[Fallback] = field(default_factory=list[Fallback])


_records: list[TargetRecord] = []


@contextmanager
def record_targets() -> Iterator[TargetRecord]:
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
    for record in _records:
        record.opaque.add(target)
        record.fallbacks.append(fallback)
