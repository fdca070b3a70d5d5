"""One engine step of a mapping as a few curves: a rank's operations summed once, so that a step costs a few lookups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.planner.attention_costs import BATCHES, LENGTHS, AttentionCosts
from weft.planner.collectives import CollectiveCosts
from weft.planner.expert_costs import expert_curve
from weft.planner.op_costs import BANDS, FLOOR, ROWS, OpCosts, over_rows
from weft.planner.program import Attention, Collective, Elementwise, Experts, Gemm, LinearAttention, RankProgram
from weft.planner.tables import Array


@dataclass(frozen=True)
class Part:
    """One operation of the program with its time over rows: what reports list."""

    name: str
    kind: str
    axis: str
    seconds: Array
    source: str


@dataclass(frozen=True)
class StepCosts:
    """Times of a step, in seconds, by what they grow with."""

    tokens: Array
    """Over `ROWS` tokens on a rank: matmuls, collectives, elementwise."""
    experts: Array
    """Over `ROWS` tokens of the whole replica."""
    sequences: Array
    """Over `ROWS` sequences on a rank that give a token."""
    prefill: Array
    decode: Array
    decode_attention: Array
    """Over `BATCHES` × `LENGTHS`."""
    prefill_attention: Array
    """Over `LENGTHS`, one prompt from its start."""
    share: float
    stages: int
    parts: tuple[Part, ...]

    def decode_step(self, batch: Any, context: Any) -> Any:
        """A step of `batch` sequences of the replica that each give a token, with so much context each."""
        rows = np.maximum(np.asarray(batch, dtype=float) / self.stages, 1.0)
        local = np.maximum(rows * self.share, 1.0)
        once = over_rows(local, self.tokens + self.sequences + self.decode) + over_rows(rows, self.experts)
        return once + surface(self.decode_attention, local, context)

    def prompt(self, length: Any, prefix: Any = 0.0) -> Any:
        """All of a prompt's `length` new tokens, alone in its steps."""
        new = np.maximum(np.asarray(length, dtype=float), 1.0)
        once = over_rows(new, self.tokens + self.experts + self.prefill) + self.sequences[0]
        return once + self.attend(new, prefix)

    def prompts(self, tokens: Any, length: float, prefix: float = 0.0, decoding: Any = 0.0) -> Any:
        """What so many `tokens` of prompts of `length` new tokens each add to a step of `decoding` sequences.

        On ranks whose attention is data parallel prompts are spread evenly, but one is on one rank."""
        wanted, beside = np.asarray(tokens, dtype=float), np.asarray(decoding, dtype=float) / self.stages
        local = np.maximum(wanted * self.share, np.minimum(wanted, length))
        here = np.maximum(beside * self.share, 0.0)
        count = wanted / length
        once = over_rows(local + here, self.tokens) + over_rows(wanted + beside, self.experts)
        once = once + over_rows(local, self.prefill) + over_rows(here + count * self.share, self.sequences)
        running = over_rows(here, self.tokens) + over_rows(beside, self.experts) + over_rows(here, self.sequences)
        once = once - np.where(beside > 0, running, 0.0)
        least = float(self.prefill_attention[0])
        attention = (float(self.attend(length, prefix)) - least) * np.maximum(
            count * self.share, np.minimum(count, 1.0)
        )
        return once + attention + least

    def attend(self, new: Any, prefix: Any) -> Any:
        """Attention of new tokens after a prefix: that of both less the prefix's own."""
        after = np.asarray(prefix, dtype=float)
        whole = np.interp(np.asarray(after + new, dtype=float), LENGTHS, self.prefill_attention)
        before = np.interp(after, LENGTHS, self.prefill_attention)
        least = self.prefill_attention[0]
        return np.where(after > 0, np.maximum(whole - before + least, least), whole)

    def band(self, batch: float, context: float) -> float:
        """The part by which a decoding step may be off, by what its times are from."""
        total, off = 0.0, 0.0
        for part in self.parts:
            seconds = self.part_seconds(part, batch, context)
            total += seconds
            off += seconds * BANDS[part.source]
        return off / total if total else 0.0

    def part_seconds(self, part: Part, batch: float, context: float) -> float:
        """A part's time in a decoding step."""
        rows = max(batch / self.stages, 1.0)
        local = max(rows * self.share, 1.0)
        if part.axis.startswith("prefill"):
            return 0.0
        if part.axis == "decode attention":
            return float(surface(part.seconds, local, context))
        return float(over_rows(rows if part.axis == "experts" else local, part.seconds))


def _index(positions: Array, wanted: Any) -> Array:
    return np.asarray(np.searchsorted(positions, np.asarray(wanted, dtype=float), side="right"))


def surface(seconds: Array, batch: Any, length: Any) -> Any:
    """Between the sites of a surface over `BATCHES` × `LENGTHS`, linear in both."""
    i: Any = np.clip(_index(BATCHES, batch) - 1, 0, len(BATCHES) - 2)
    j: Any = np.clip(_index(LENGTHS, length) - 1, 0, len(LENGTHS) - 2)
    p = np.maximum((batch - BATCHES[i]) / (BATCHES[i + 1] - BATCHES[i]), 0.0)
    q = np.maximum((length - LENGTHS[j]) / (LENGTHS[j + 1] - LENGTHS[j]), 0.0)
    low = seconds[i, j] * (1 - q) + seconds[i, j + 1] * q
    high = seconds[i + 1, j] * (1 - q) + seconds[i + 1, j + 1] * q
    return low * (1 - p) + high * p


def step_costs(program: RankProgram, costs: OpCosts, kv: str) -> StepCosts:
    """Price every operation of a rank and sum what grows alike."""
    attention, collectives = AttentionCosts(costs, kv), CollectiveCosts(costs)
    parts: list[Part] = []
    for op in program.operations:
        parts += _price(op, costs, attention, collectives)

    def total(axis: str, like: Array) -> Array:
        return sum((part.seconds for part in parts if part.axis == axis), np.zeros_like(like))

    return StepCosts(
        tokens=total("tokens", ROWS),
        experts=total("experts", ROWS),
        sequences=total("sequences", ROWS),
        prefill=total("prefill", ROWS),
        decode=total("decode", ROWS),
        decode_attention=total("decode attention", np.zeros((len(BATCHES), len(LENGTHS)))),
        prefill_attention=total("prefill attention", LENGTHS),
        share=program.tokens_share,
        stages=program.stages,
        parts=tuple(parts),
    )


def _price(op: Any, costs: OpCosts, attention: AttentionCosts, collectives: CollectiveCosts) -> list[Part]:
    if isinstance(op, Gemm):
        if op.batch > 1:
            return [_batched(op, costs)]
        curve = costs.gemm(op)
        axis = op.phase if op.phase != "both" else op.rows
        return [Part(op.name, "matmul", axis, curve.seconds * op.count, curve.source)]
    if isinstance(op, Elementwise):
        curve = costs.elementwise(op)
        return [Part(op.name, "elementwise", op.rows, curve.seconds * op.count, curve.source)]
    if isinstance(op, Experts):
        curve = expert_curve(costs, op)
        return [Part(op.name, "experts", "experts", curve.seconds * op.count, curve.source)]
    if isinstance(op, Collective):
        seconds, source = collectives.seconds(op, op.bytes_per_row * ROWS)
        return [Part(op.name, "collective", op.rows, seconds * op.count, source)]
    if isinstance(op, LinearAttention):
        decode, prefill = costs.linear_attention(op), costs.linear_prefill(op)
        return [
            Part(op.name, "recurrence", "decode", decode.seconds * op.count, decode.source),
            Part(op.name, "recurrence", "prefill", prefill.seconds * op.count, prefill.source),
        ]
    assert isinstance(op, Attention)
    if not op.value_dim:
        return _index_scores(op, costs)
    found, prompts = attention.decode(op), attention.prefill(op)
    return [
        Part(op.name, "attention", "decode attention", found.seconds * op.count, found.source),
        Part(op.name, "attention", "prefill attention", prompts.seconds[0] * op.count, prompts.source),
    ]


def _batched(op: Gemm, costs: OpCosts) -> Part:
    moved = op.batch * (op.n * op.k + ROWS * (op.n + op.k)) * 2.0
    bound = np.maximum(moved / costs.gpu.bandwidth, 2.0 * op.batch * op.n * op.k * ROWS / costs.gpu.bf16)
    return Part(op.name, "matmul", "decode", np.maximum(bound, FLOOR) * op.count, "roofline")


def _index_scores(op: Attention, costs: OpCosts) -> list[Part]:
    """Scores of a sparse attention's index: one key a token, in fp8."""
    gpu = costs.gpu
    batch, length = BATCHES[:, None], LENGTHS[None, :]
    decode = np.maximum(
        batch * length * op.head_dim / gpu.bandwidth, 2.0 * batch * length * op.heads * op.head_dim / gpu.flops("fp8")
    )
    prompts = LENGTHS**2 * op.heads * op.head_dim / gpu.flops("fp8")
    return [
        Part(op.name, "attention", "decode attention", np.maximum(decode, FLOOR) * op.count, "roofline"),
        Part(op.name, "attention", "prefill attention", np.maximum(prompts, FLOOR) * op.count, "roofline"),
    ]
