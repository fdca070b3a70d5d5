"""Where temporaries lie in the arena: liveness over the steps, then first fit by size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.ir.expr import evaluate, product
from weft.lower.steps import Plan, buffers_of

ALIGNMENT = 64


@dataclass(frozen=True)
class Arena:
    """Offsets of the temporaries in one block of memory."""

    size: int
    offsets: Mapping[int, int]


def lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    """The first and last step that touches each temporary."""
    lives: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        for buffer in buffers_of(step):
            if plan.buffers[buffer].role == "temporary":
                first, _ = lives.get(buffer, (number, number))
                lives[buffer] = (first, number)
    return lives


def plan_arena(plan: Plan, sizes: Mapping[str, int]) -> Arena:
    """Lay out the temporaries for known sizes; two share memory only if no step lies in both lifetimes."""
    lives = lifetimes(plan)
    bytes_of = {
        buffer: evaluate(product(plan.buffers[buffer].tensor.shape), sizes) * plan.buffers[buffer].tensor.dtype.bytes
        for buffer in lives
    }
    placed: list[tuple[int, int, int]] = []
    offsets: dict[int, int] = {}
    total = 0
    for buffer in sorted(lives, key=lambda n: (-bytes_of[n], n)):
        first, last = lives[buffer]
        need = -(-max(bytes_of[buffer], 1) // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, other in sorted(placed):
            other_first, other_last = lives[other]
            if other_last < first or last < other_first:
                continue
            if offset + need <= start:
                break
            offset = max(offset, end)
        offsets[buffer] = offset
        placed.append((offset, offset + need, buffer))
        total = max(total, offset + need)
    return Arena(total, offsets)
