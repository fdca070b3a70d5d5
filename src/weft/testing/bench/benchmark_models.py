"""The suites `models` (inference, weights frozen), `quantized` (the same in 8 bits) and `train` (steps with AdamW)."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.testing.bench.benchmark import EAGER, EXACT, INDUCTOR, ONNX_RUNTIME, Call, Contender, own_code
from weft.testing.bench.benchmark_case import Case, Start
from weft.testing.models import FULL_SIZE, ModelCase, full_size, image, logits_loss, padded_tokens, tokens

Inputs = Callable[[int], dict[str, Tensor]]

_PEERS = (EAGER, INDUCTOR, ONNX_RUNTIME)
_DECODES: dict[str, Any] = {"use_cache": False, "attn_implementation": "sdpa"}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

VIT_SMALL: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "num_labels": 1000,
    "attn_implementation": "sdpa",
    **NO_DROPOUT,
}
MIXTRAL_TINY: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    **_DECODES,
}
GPT2_TRAINED: dict[str, Any] = {
    "vocab_size": 8192,
    "n_positions": 128,
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    **_DECODES,
}
RESNET_18: dict[str, Any] = {
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
    "num_labels": 100,
}


def inferring(case: ModelCase, inputs: Inputs | None = None) -> Callable[[], Start]:
    """Work that is a forward pass."""

    def build() -> Start:
        module, given = case.build(), (inputs or case.inputs)(0)

        def start(contender: Contender) -> Call:
            run = contender.compile(module)
            return lambda: run(**given)

        return start

    return build


def decoding(case: ModelCase, length: int = 128, room: int = 256) -> Callable[[], Start]:
    """Work that is one more token after `length` others, whose keys and values lie in a cache with some room."""

    def build() -> Start:
        from transformers import StaticCache

        module = case.build()
        prompt, token = (tokens(1, count, 8192)(count)["input_ids"] for count in (length, 1))

        def start(contender: Contender) -> Call:
            config: Any = module.config
            cache: Any = StaticCache(config=config, max_cache_len=room)
            with torch.no_grad():
                module(prompt, past_key_values=cache, use_cache=True)
            run = contender.compile(module)

            def call() -> Tensor:
                for layer in cache.layers:
                    layer.cumulative_length.fill_(length)
                return run(token, past_key_values=cache, use_cache=True).logits

            return call

        return start

    return build


def training(case: ModelCase) -> Callable[[], Start]:
    """Work that is a step: loss, gradients, torch's fused AdamW. The loss is compiled with the model."""

    def build() -> Start:
        module, given = case.build(), case.inputs(0)

        def start(contender: Contender) -> Call:
            mine = case.train(copy.deepcopy(module))
            optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-4, fused=True)

            def loss() -> Tensor:
                return case.loss(mine(**given))

            run = contender.compile(own_code(loss))

            def call() -> Tensor:
                value = run()
                value.backward()
                optimizer.step()
                optimizer.zero_grad()
                return value.detach()

            return call

        return start

    return build


def _classifier(name: str, family: str, inputs: Inputs, **settings: Any) -> ModelCase:
    return ModelCase(name, full_size(family, "ForImageClassification", **settings), inputs, logits_loss)


def _inference(case: ModelCase, name: str | None = None, inputs: Inputs | None = None) -> Case:
    return Case("models", name or case.name, inferring(case, inputs), frozen=True, peers=_PEERS, exported=True)


def _decoding(case: ModelCase, name: str) -> Case:
    return Case("models", name, decoding(case), frozen=True)


def _step(case: ModelCase) -> Case:
    return Case("train", case.name, training(case), training=True)


def model_cases() -> list[Case]:
    """The suite `models`."""
    mixtral = ModelCase(
        "mixtral_tiny", full_size("Mixtral", "ForCausalLM", **MIXTRAL_TINY), tokens(1, 128, 8192), logits_loss
    )
    return [
        *(_inference(FULL_SIZE["minilm"], f"minilm_{n}", padded_tokens(n, 128, 30522)) for n in (1, 8, 32)),
        _inference(FULL_SIZE["gpt2_small"], "gpt2_small_prefill"),
        _decoding(FULL_SIZE["gpt2_small"], "gpt2_small_decode"),
        _inference(FULL_SIZE["llama_8"], "llama_8_prefill"),
        _decoding(FULL_SIZE["llama_8"], "llama_8_decode"),
        _inference(_classifier("vit_small", "ViT", image(1, 224), **VIT_SMALL)),
        _inference(_classifier("resnet_50", "ResNet", image(1, 224), num_labels=1000)),
        _inference(_classifier("mobilenet_v2", "MobileNetV2", image(1, 224), num_labels=1000)),
        _inference(_classifier("convnext_tiny", "ConvNext", image(1, 224), num_labels=1000)),
        _inference(mixtral),
    ]


def quantized_cases() -> list[Case]:
    """The suite `quantized`: products in 8 bits against Weft in f32."""
    encoder = inferring(FULL_SIZE["minilm"], padded_tokens(1, 128, 30522))
    decoder = decoding(FULL_SIZE["gpt2_small"])
    return [
        Case("quantized", "minilm_1_dynamic", encoder, frozen=True, peers=(EXACT,), quantize="int8_dynamic"),
        Case("quantized", "minilm_1_weights", encoder, frozen=True, peers=(EXACT,), quantize="int8_weights"),
        Case("quantized", "gpt2_small_decode_weights", decoder, frozen=True, peers=(EXACT,), quantize="int8_weights"),
        Case("quantized", "gpt2_small_decode_dynamic", decoder, frozen=True, peers=(EXACT,), quantize="int8_dynamic"),
    ]


def train_cases() -> list[Case]:
    """The suite `train`."""
    gpt2 = ModelCase("gpt2_step", full_size("GPT2", "LMHeadModel", **GPT2_TRAINED), tokens(4, 128, 8192), logits_loss)
    vit = {**VIT_SMALL, "num_hidden_layers": 6, "image_size": 96, "num_labels": 100}
    return [
        _step(gpt2),
        _step(_classifier("vit_step", "ViT", image(8, 96), **vit)),
        _step(_classifier("resnet_18_step", "ResNet", image(8, 64), **RESNET_18)),
    ]
