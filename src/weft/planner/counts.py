"""Exact counts of a per-rank program: operations, weights, cache and what collectives move."""

from __future__ import annotations

from dataclasses import dataclass

from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import Model
from weft.planner.program import Attention, Collective, Experts, Gemm, RankProgram


@dataclass(frozen=True)
class Counts:
    """A forward pass of one prompt on one rank."""

    flops: int
    """Multiplications and additions of matmuls and of attention over the whole square, as torch counts them."""
    weight_bytes: float
    kv_bytes_per_token: float
    collectives: dict[str, tuple[int, float]]
    """Calls and bytes of whole buffers, by kind."""


def counts(model: Model, mapping: Mapping, tokens: int, kv_bytes: float = 2.0, *, all_logits: bool = False) -> Counts:
    """Count one prompt of so many tokens; logits of its last token alone unless all are asked for."""
    return program_counts(rank_program(model, mapping, kv_bytes), tokens, all_logits=all_logits)


def program_counts(program: RankProgram, tokens: int, *, all_logits: bool = False) -> Counts:
    """Count a per-rank program, whoever made it."""
    flops = 0
    moved: dict[str, tuple[int, float]] = {}
    for op in program.operations:
        rows = tokens if all_logits or getattr(op, "rows", "tokens") == "tokens" else 1
        if isinstance(op, Gemm) and op.phase != "decode":
            flops += 2 * rows * op.n * op.k * op.batch * op.count
        elif isinstance(op, Attention):
            flops += 2 * tokens * tokens * op.heads * (op.head_dim + op.value_dim) * op.count
        elif isinstance(op, Experts):
            pairs = tokens * op.per_token
            flops += 2 * pairs * op.matrices * op.hidden * op.width * op.count // (op.tp * op.ep)
        elif isinstance(op, Collective):
            calls, size = moved.get(op.kind, (0, 0.0))
            moved[op.kind] = calls + op.count, size + op.bytes_per_row * rows * op.count
    return Counts(flops, program.weight_bytes, program.kv_bytes_per_token, moved)
