"""Serving in closed form: prompts ride along with decoding, as many as a step has room for. It ranks what is simulated.

With c sequences resident, d of them decoding, a tick brings p = d·ISL/OSL tokens of other sequences' prompts. Sequences
end, and others begin, by chance: 1 − exp(−d/OSL) of the ticks hold prompts, n = p/(1 − exp(−d/OSL)) tokens of them
each, as far as a step's budget has room:

    TPOT = T(d) + p/n · (T(d + n) − T(d))      prompts along with decoding: weights are read once for both
    TPOT = T(d) + p/n · T(n)                    prompts in steps of their own, which hold decoding up
    TPOT = T(d) + p/2n · T(n)                   the same, of requests that end and begin together (`waves`)

Where prompts bring more than the budget, fewer than c decode, and the rest waits: TTFT = E2E − OSL·TPOT by Little's
law. All over arrays of concurrencies at once.
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


@dataclass(frozen=True)
class Batching:
    """How an engine makes steps: their budget of tokens (of all ranks of attention), and whether prompts go along."""

    tokens: float = 8192.0
    mixed: bool = True
    waves: bool = False
    """Whether clients of a closed loop ask for the same lengths, so that requests end, and others begin, together.
    Where prompts run in steps of their own, each then holds up those before it alone: half of all, on average."""


_ROUNDS = 3
"""Times that the number of sequences which decode is found anew from how long they take."""


def serve(
    costs: StepCosts,
    isl: float,
    osl: float,
    concurrency: Any,
    fits: int,
    *,
    prefix: float = 0.0,
    draft: Draft | None = None,
    batching: Batching | None = None,
) -> Service:
    """A replica with so many clients each, of which `fits` are resident at most."""
    batching = batching or Batching()
    clients = np.asarray(concurrency, dtype=float)
    inside = np.clip(clients, 1.0, max(fits, 1))
    context = isl + osl / 2
    cached = isl * prefix
    new = max(isl - cached, 1.0)
    ticks = max(osl / (draft.per_step if draft else 1.0), 1.0)
    most = batching.tokens / (1.0 + new / ticks) if batching.mixed else np.inf
    held = 0.5 if batching.waves and not batching.mixed else 1.0
    decoding = np.minimum(inside, most)
    step = tick = decode_seconds(costs, decoding, context, draft)
    first = longer = together = tick
    for _ in range(_ROUNDS):
        step = decode_seconds(costs, decoding, context, draft)
        width = np.maximum(batching.tokens - decoding, 1.0) if batching.mixed else batching.tokens
        brought = np.minimum(np.maximum(decoding - 1.0, 0.0) * new / ticks, width)
        ended = np.maximum(brought / new, 1e-9)
        together = np.minimum(brought / -np.expm1(-ended), width) + (brought <= 0) * np.minimum(new, width)
        alone = costs.prompts(together, new, cached)
        longer = costs.prompts(together, new, cached, decoding) if batching.mixed else alone
        tick = step + held * brought / together * longer / costs.stages
        chunks = np.ceil(new / np.minimum(width, new))
        first = tick / 2 + (np.maximum(step + longer, alone) if batching.mixed else alone) * chunks
        decoding = np.minimum(inside * ticks * tick / (ticks * tick + first), most)
        decoding = np.maximum(decoding, np.minimum(inside, 1.0))
    # What all residents' requests take of the replica's time, one after another, no latency can be below.
    busy = ticks * step / decoding + new / together * longer / costs.stages
    e2e = np.maximum(first + ticks * tick, inside * busy)
    e2e = e2e * clients / inside
    prompt = float(costs.prompt(new, cached)) / costs.stages
    ttft = np.maximum(e2e - ticks * tick, first)
    return Service(clients, inside, ttft, tick / (osl / ticks), e2e, clients * osl / e2e, prompt, step)


def decode_seconds(costs: StepCosts, batch: Any, context: Any, draft: Draft | None) -> Array:
    """A decoding step, with drafted tokens' rows in its matmuls."""
    if draft is None or not draft.tokens:
        return costs.decode_step(batch, context)
    wide = costs.decode_step(np.asarray(batch) * (draft.tokens + 1), context)
    attention = costs.decode_step(np.asarray(batch) * (draft.tokens + 1), 1.0)
    narrow = costs.decode_step(batch, context) - costs.decode_step(batch, 1.0)
    return np.minimum(wide, attention + narrow) * (1.0 + draft.cost * draft.tokens)
