"""Small configurations are made by what fields are called, and parts that have to fit one another still do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from weft.testing.zoo.shrink import RECIPES, VOCABULARY, shrunk


@dataclass
class Part:
    model_type: str = "part"
    hidden_size: int = 1024
    num_attention_heads: int = 16
    image_size: int = 224
    patch_size: int = 14
    attention_dropout: float = 0.1

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


@dataclass
class Whole:
    model_type: str = "whole"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    kv_lora_rank: int = 512
    num_experts: int = 64
    num_experts_per_tok: int = 6
    sliding_window: int = 4096
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    eos_token_id: int = 31999
    image_token_id: int = 31000
    video_token_id: int = 31001
    vision_feature_layer: int = -2
    layer_types: list[str] = field(default_factory=lambda: (["sliding"] * 5 + ["full"]) * 5 + ["sliding"] * 2)
    vision_config: Part = field(default_factory=Part)

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def test_sizes_become_small_and_fit_one_another():
    found = shrunk(Whole(), RECIPES[0])
    assert found["hidden_size"] == found["num_attention_heads"] * found["head_dim"] == 64
    assert found["num_attention_heads"] % found["num_key_value_heads"] == 0 and found["num_key_value_heads"] == 2
    assert found["intermediate_size"] == 128 and found["kv_lora_rank"] == 64
    assert found["num_experts"] == 4 and found["num_experts_per_tok"] == 2
    assert found["use_cache"] is False and "rms_norm_eps" not in found and "vision_feature_layer" not in found


def test_parts_of_a_config_are_made_small_as_the_whole_is():
    part = shrunk(Whole(), RECIPES[0])["vision_config"]
    assert part["model_type"] == "part" and part["hidden_size"] == 64 and part["attention_dropout"] == 0.0
    assert part["image_size"] % Part.patch_size == 0 and part["image_size"] < 224


def test_every_kind_of_layer_is_kept():
    found = shrunk(Whole(), RECIPES[0])
    assert found["layer_types"] == ["sliding", "full"] and found["num_hidden_layers"] == 2


def test_special_tokens_are_apart_and_in_the_vocabulary():
    found = shrunk(Whole(), RECIPES[0])
    ids = [found[name] for name in ("eos_token_id", "image_token_id", "video_token_id")]
    assert len(set(ids)) == 3 and max(ids) < found["vocab_size"] == VOCABULARY


def test_a_recipe_without_a_width_leaves_widths_as_they_are():
    shallow = next(recipe for recipe in RECIPES if recipe.width is None)
    found = shrunk(Whole(), shallow)
    assert found["num_hidden_layers"] == 2 and not {"hidden_size", "head_dim", "num_attention_heads"} & found.keys()


@dataclass
class Stages:
    model_type: str = "stages"
    depths: tuple[int, ...] = (3, 4, 6, 3)
    hidden_sizes: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])
    embed_dim: int = 96

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def test_widths_of_stages_keep_their_ratios():
    found = shrunk(Stages(), RECIPES[0])
    assert found["depths"] == [2, 2, 2, 2] and found["hidden_sizes"] == [16, 32, 64, 128] and "embed_dim" not in found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_config_of_transformers_takes_what_is_made_of_it(recipe):
    transformers = pytest.importorskip("transformers")
    for kind in (transformers.LlamaConfig, transformers.CLIPConfig, transformers.WhisperConfig):
        small = kind(**shrunk(kind(), recipe))
        text = getattr(small, "text_config", small)
        assert text.vocab_size <= VOCABULARY
