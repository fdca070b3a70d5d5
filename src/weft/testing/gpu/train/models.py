"""The models of the suite `train`: families of transformers with random weights, their batches, and how large they are.

Every contender makes the same weights and batches of the same seeds, in a process of its own.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.testing.gpu.case import Place
from weft.testing.models import configured

SUITE = "train"
BATCHES = 4
"""Different batches, over and over: so losses fall, and a mistake shows."""
_SMALL_LENGTH, _SMALL_SIDE = 32, 64

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class TrainCase:
    """A model and its batches. A rehearsal takes `small` in place of the family's sizes.

    `searched` cases have peers that try many kernels, too.
    """

    name: str
    family: str
    head: str
    make: Callable[[Place, int], Batch]
    rows: int
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    small: dict[str, Any] = field(default_factory=dict[str, Any])
    channels_last: bool = False
    searched: bool = False
    suite: str = SUITE

    def model(self, place: Place) -> nn.Module:
        """The model in f32 on its device, to be trained."""
        settings = self.settings if place.shrink == 1 else {**self.settings, **self.small}
        torch.manual_seed(0)
        with torch.device(place.device.name):
            module = configured(self.family, self.head, settings)
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  torch has no type for it
        return module.train()

    def batches(self, place: Place) -> list[Batch]:
        torch.manual_seed(1)
        return [self.make(place, self.rows if place.shrink == 1 else 2) for _ in range(BATCHES)]


def _tokens(length: int, vocabulary: int) -> Callable[[Place, int], Batch]:
    """Ids that are their own labels: a decoder shifts them."""

    def make(place: Place, rows: int) -> Batch:
        few = place.shrink > 1
        ids = place.integers(128 if few else vocabulary, rows, _SMALL_LENGTH if few else length)
        return {"input_ids": ids, "labels": ids}

    return make


def _masked_tokens(length: int, vocabulary: int) -> Callable[[Place, int], Batch]:
    """Ids of which every seventh is to be guessed; the others' labels do not count."""

    def make(place: Place, rows: int) -> Batch:
        batch = _tokens(length, vocabulary)(place, rows)
        masked = torch.arange(batch["input_ids"].shape[1], device=place.device.name) % 7 == 0
        return {
            "input_ids": batch["input_ids"].masked_fill(masked, 1),
            "labels": batch["labels"].masked_fill(~masked, -100),
            "attention_mask": torch.ones_like(batch["input_ids"]),
        }

    return make


def _images(*, channels_last: bool = False) -> Callable[[Place, int], Batch]:
    def make(place: Place, rows: int) -> Batch:
        side = 224 if place.shrink == 1 else _SMALL_SIDE
        pixels = place.normal(rows, 3, side, side, dtype=torch.float32)
        if channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        return {"pixel_values": pixels, "labels": place.integers(10, rows)}

    return make


_DECODES: dict[str, Any] = {"use_cache": False, "attn_implementation": "sdpa"}
# Left unsaid, the first call finds it out and notes it, and the second is compiled again.
_CLASSES: dict[str, Any] = {"num_labels": 1000, "problem_type": "single_label_classification"}
_SMALL_GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}
_SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA: dict[str, Any] = {
    **_DECODES,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_MIXTRAL: dict[str, Any] = {
    **_DECODES,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
}


def train_cases() -> list[TrainCase]:
    """The suite `train`."""
    medium = {**_DECODES, "n_embd": 1024, "n_layer": 24, "n_head": 16}
    few = {**_SMALL, "num_key_value_heads": 2, "vocab_size": 128}
    small_resnet = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
    sdpa = {"attn_implementation": "sdpa"}
    gpt2 = _tokens(1024, 50257)
    return [
        TrainCase("gpt2_small_train", "GPT2", "LMHeadModel", gpt2, 8, _DECODES, _SMALL_GPT2, searched=True),
        TrainCase("llama_1b_train", "Llama", "ForCausalLM", _tokens(2048, 128256), 4, _LLAMA, few, searched=True),
        TrainCase(
            "vit_base_train",
            "ViT",
            "ForImageClassification",
            _images(),
            64,
            {**sdpa, **_CLASSES},
            {**_SMALL, "image_size": _SMALL_SIDE},
            searched=True,
        ),
        TrainCase(
            "bert_base_train",
            "Bert",
            "ForMaskedLM",
            _masked_tokens(512, 30522),
            32,
            sdpa,
            {**_SMALL, "vocab_size": 128},
        ),
        TrainCase("gpt2_medium_train", "GPT2", "LMHeadModel", gpt2, 4, medium, _SMALL_GPT2),
        TrainCase(
            "resnet_50_train",
            "ResNet",
            "ForImageClassification",
            _images(channels_last=True),
            128,
            _CLASSES,
            small_resnet,
            channels_last=True,
        ),
        TrainCase(
            "mixtral_train",
            "Mixtral",
            "ForCausalLM",
            _tokens(1024, 32000),
            4,
            _MIXTRAL,
            {**few, "num_local_experts": 4},
        ),
    ]


def train_case_named(name: str) -> TrainCase:
    for case in train_cases():
        if case.name == name:
            return case
    raise WeftError(f"the suite {SUITE} has no case called {name}")
