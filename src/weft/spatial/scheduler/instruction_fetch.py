"""Which layer starts too early for the queues of the units to have fetched its words.

A queue holds a few words at the start and fetches at a fixed rate from then on. Issues that differ by the same steps
are two words, however many they are; a layer whose issues do not, or that reads and writes the same slices, takes more
words than are fetched meanwhile, and so needs some that were fetched before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.spatial.machine import StreamingMachine
from weft.spatial.program import ISSUE, NOP, Text


@dataclass(frozen=True)
class DryQueue:
    """A queue without a word that it has to issue."""

    queue: int
    layer: int
    cycles: int
    """How much later its words are there."""


def first_dry_queue(machine: StreamingMachine, texts: Sequence[Text], ends: np.ndarray) -> DryQueue | None:
    """Of the first layer whose words come too late, the queue that lacks them longest.

    The instructions of a layer lie before its end and not before the end of the layer in front of it.
    """
    rate = machine.control.fetch_bytes / machine.control.instruction_bytes
    by_queue: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for text in texts:
        by_queue.setdefault(text.queue, []).append(_words(text))
    found: DryQueue | None = None
    for queue, parts in by_queue.items():
        times, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(times, kind="stable")
        fetched = np.ceil((np.arange(1, len(order) + 1) - machine.control.depth) / rate).astype(np.int64) - 1
        lack = fetched - times[order]
        if lack.max(initial=0) <= 0:
            continue
        layers = np.searchsorted(ends, rows[order], side="right")
        layer = int(layers[lack > 0].min())
        dry = DryQueue(queue, layer, int(lack[layers == layer].max()))
        if found is None or (dry.layer, -dry.cycles) < (found.layer, -found.cycles):
            found = dry
    return found


def _words(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """For each word the cycle in which it is needed, and the instruction that it is of: a pause of the one before."""
    kinds, first, second = (text.words[:, part] for part in range(3))
    spans = np.where(kinds == ISSUE, 1, np.where(kinds == NOP, first, first * second))
    issued = np.flatnonzero(kinds == ISSUE)
    own = np.maximum(np.cumsum(kinds == ISSUE) - 1, 0)
    return np.cumsum(spans) - spans, first[issued][own]
