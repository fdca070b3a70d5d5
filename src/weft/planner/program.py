"""The per-rank program that is priced: operations of one device, with explicit collectives, as a partitioner makes it.

Every operation says how often it runs in one forward pass (`count`) and how many rows it has for each token of a step.
Whoever makes such a list (the configuration reader here, a partitioned graph elsewhere) gets counts and times from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Rows = Literal["tokens", "sequences"]
"""What an operation has a row for: each token of the step, or each sequence that gives a next token."""

Phase = Literal["both", "prefill", "decode"]
"""Which tokens an operation is for: latent attention expands its cache for prompts, and absorbs it when decoding."""

BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int4": 0.5 + 2 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "fp8_weights": 1.0,
    "nvfp4_weights": 0.5 + 1 / 16,
    "f32": 4.0,
}
"""Bytes of a weight with its share of the scales: int4 has a bf16 scale for 32, mxfp4 one byte for 32, nvfp4 for 16."""
WEIGHTS_ONLY = {"fp8": "fp8_weights", "fp8_block": "fp8_weights", "nvfp4": "nvfp4_weights"}
"""What formats are that a GPU only holds weights in, where its tensor cores do not multiply in them."""
WIDENED = ("int4", "mxfp4", *dict.fromkeys(WEIGHTS_ONLY.values()))
"""Formats that matmuls widen to bf16, in which activations are."""
PRECISIONS = tuple(name for name in BYTES if name not in ("f32", *WEIGHTS_ONLY.values()))
"""What a service's weights may be held in; f32 is for what a model holds beside them."""


@dataclass(frozen=True)
class Gemm:
    """A matmul with weights: rows × k by k × n."""

    name: str
    n: int
    k: int
    weights: str = "bf16"
    rows: Rows = "tokens"
    phase: Phase = "both"
    batch: int = 1
    """Matmuls that run as one: a head each, in absorbed latent attention."""
    count: int = 1


@dataclass(frozen=True)
class Attention:
    """Attention over a cache, heads as on one rank. `value_dim` differs from `head_dim` in latent attention.

    `latent` is the rank of the compressed cache (0: none); `limit` the most tokens that a query looks at (0: all).
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    latent: int = 0
    rope_dim: int = 0
    limit: int = 0
    count: int = 1


@dataclass(frozen=True)
class LinearAttention:
    """A recurrent layer: its state, in elements, is read and written once for each sequence and step."""

    name: str
    state: int
    flops_per_token: int
    count: int = 1


@dataclass(frozen=True)
class Experts:
    """The experts of one rank, of tokens that are counted over the whole expert-parallel group."""

    name: str
    hidden: int
    width: int
    per_token: int
    experts: int
    tp: int
    ep: int
    weights: str = "bf16"
    matrices: int = 3
    count: int = 1


@dataclass(frozen=True)
class Elementwise:
    """A kernel that is bound by memory: bytes read and written for each row."""

    name: str
    bytes_per_row: float
    rows: Rows = "tokens"
    count: int = 1


@dataclass(frozen=True)
class Collective:
    """A collective over `group` ranks, `tier` of them apart; bytes of the whole buffer for each row."""

    name: str
    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    group: int
    bytes_per_row: float
    rows: Rows = "tokens"
    count: int = 1


Operation = Gemm | Attention | LinearAttention | Experts | Elementwise | Collective


@dataclass(frozen=True)
class RankProgram:
    """What one rank runs in a forward pass, and what it holds.

    `tokens_share` is the part of a replica's tokens that a rank's own operations see: 1/n with attention data parallel
    over n ranks. Experts see all tokens.
    """

    operations: tuple[Operation, ...]
    weight_bytes: float
    kv_bytes_per_token: float
    state_bytes_per_sequence: float = 0.0
    tokens_share: float = 1.0
    stages: int = 1
    window_tokens: tuple[tuple[int, float], ...] = field(default=())
    """(window, KV bytes per token) of layers that keep no more than a window."""
