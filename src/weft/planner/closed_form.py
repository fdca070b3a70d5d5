"""Serving in closed form: every other sequence's prompt falls into a sequence's life once. It ranks what is simulated.

    TPOT = T_decode(c) + (c − 1)·T_prompt / OSL
    E2E  = (clients / c)·(OSL·T_decode + c·T_prompt)

with c the sequences that fit. All over arrays of concurrencies at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.planner.step_costs import StepCosts
from weft.planner.tables import Array


@dataclass(frozen=True)
class Draft:
    """Speculative decoding: `tokens` are drafted a step and each is accepted with `accepted` if the last one was."""

    tokens: int = 0
    accepted: float = 0.0
    cost: float = 0.0
    """A draft token's time as a part of a decoding step: 0 for n-grams."""

    @property
    def per_step(self) -> float:
        """Tokens that a step gives, on average."""
        return float(sum(self.accepted**index for index in range(self.tokens + 1)))


@dataclass(frozen=True)
class Service:
    """Figures of a replica over concurrencies; times in seconds, rates of output tokens a second."""

    concurrency: Array
    resident: Array
    ttft: Array
    tpot: Array
    e2e: Array
    rate: Array
    """Output tokens a second of the replica."""
    prompt: float
    step: Array


def serve(
    costs: StepCosts,
    isl: float,
    osl: float,
    concurrency: Any,
    fits: int,
    *,
    prefix: float = 0.0,
    draft: Draft | None = None,
) -> Service:
    """A replica with so many clients each, of which `fits` are resident at most."""
    clients = np.asarray(concurrency, dtype=float)
    inside = np.clip(clients, 1.0, max(fits, 1))
    step = decode_seconds(costs, inside, isl + osl / 2, draft)
    cached = isl * prefix
    prompt = float(costs.prompt(isl - cached, cached)) / costs.stages
    per_token = step / (draft.per_step if draft else 1.0)
    tpot = per_token + (inside - 1) * prompt / osl
    e2e = (clients / inside) * (osl * per_token + inside * prompt)
    filling = inside * prompt / (osl * per_token + inside * prompt)
    waiting = np.maximum(clients - inside, 0.0) / inside * e2e * (inside / clients)
    ttft = prompt * costs.stages + step + filling / np.maximum(2 * (1 - filling), 1e-3) * prompt + waiting
    return Service(clients, inside, ttft, tpot, e2e, clients * osl / e2e, prompt, step)


def decode_seconds(costs: StepCosts, batch: Any, context: Any, draft: Draft | None) -> Array:
    """A decoding step, with drafted tokens' rows in its matmuls."""
    if draft is None or not draft.tokens:
        return costs.decode_step(batch, context)
    wide = costs.decode_step(np.asarray(batch) * (draft.tokens + 1), context)
    attention = costs.decode_step(np.asarray(batch) * (draft.tokens + 1), 1.0)
    narrow = costs.decode_step(batch, context) - costs.decode_step(batch, 1.0)
    return np.minimum(wide, attention + narrow) * (1.0 + draft.cost * draft.tokens)
