"""What a configuration leaves to its family: the one place where a model's kind (`model_type`) decides anything.

Sizes, layer kinds, experts, windows and latent attention are fields. What stands in this table is in no field of
`config.json`, only in the family's code: how many norms a layer has, whether queries and keys are normed and by how
many weights, where biases are, gates, sinks, a shared expert without a width of its own. A field goes before the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A plain decoder, but for what a family does otherwise: two norms, SwiGLU, no biases, nothing normed or gated."""

    norms: int = 2
    """Norms of the hidden size in a layer."""
    qk_norm: str = ""
    """Queries and keys are normed by weights of one `head`, of `all heads`, or `without weights`."""
    always_normed: bool = True
    """Whether they are so in every model of the family, not only where `use_qk_norm` says it."""
    bias: bool = False
    """Whether queries, keys and values have biases where `attention_bias` is not a field."""
    output_bias: bool = True
    """Whether the output projection has one where they have."""
    gate: bool = False
    """Whether attention's output is gated where `attn_output_gate` is not a field."""
    sinks: bool = False
    gated: bool = True
    """Whether dense blocks are gated, where the activation alone does not say."""
    shared_expert: bool = False
    """One shared expert of a routed one's width."""
    expert_biases: bool = False
    """Biases of experts and of their router."""
    uncounted: str = ""
    """What the family has and counts leave out: a plan says so."""
    tied: bool = False
    """Whether the embedding is the head's weight where `tie_word_embeddings` is not a field."""


PLAIN = Family()
_POSITIONS = "learned positions, and biases of norms and projections"
FAMILIES = {
    "deepseek_v2": PLAIN,
    "deepseek_v3": PLAIN,
    "deepseek_v32": PLAIN,
    "gemma2": Family(norms=4, tied=True),
    "gemma3": Family(norms=4, qk_norm="head", tied=True),
    "glm4_moe": Family(output_bias=False),
    "glm_moe_dsa": PLAIN,
    "gpt2": Family(gated=False, tied=True, uncounted=_POSITIONS),
    "gpt_neox": Family(gated=False, uncounted="biases of norms and projections"),
    "gpt_oss": Family(bias=True, sinks=True, expert_biases=True),
    "kimi_k2": PLAIN,
    "llama": PLAIN,
    "llama4": Family(qk_norm="without weights", always_normed=False, shared_expert=True),
    "minimax_m2": Family(qk_norm="all heads"),
    "mistral": PLAIN,
    "mixtral": PLAIN,
    "olmo2": Family(qk_norm="all heads"),
    "opt": Family(gated=False, tied=True, uncounted=_POSITIONS),
    "qwen2": Family(bias=True, output_bias=False),
    "qwen3": Family(qk_norm="head"),
    "qwen3_5": Family(qk_norm="head", gate=True),
    "qwen3_next": Family(qk_norm="head", gate=True),
}
"""By `model_type`, or by its first words: `qwen3` stands for `qwen3_moe` too."""


def family_of(model_type: str) -> Family | None:
    """The family of a `model_type`, by as many of its first words as have an entry; None where none have."""
    words = model_type.split("_")
    for count in range(len(words), 0, -1):
        found = FAMILIES.get("_".join(words[:count]))
        if found is not None:
            return found
    return None
