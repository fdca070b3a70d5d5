"""What no field of a configuration says is had from its family; a family that nobody knows is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from weft.planner.counts import counts
from weft.planner.families import FAMILIES, PLAIN, family_of
from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping
from weft.planner.model import known_models, model_of
from weft.planner.page import page
from weft.planner.plan import plan
from weft.planner.search import Settings
from weft.planner.traffic import Targets, Traffic
from weft.tools.cli import app

SMALL = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 512, "intermediate_size": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
SHARED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "n_shared_experts": 1}
LATENT = {
    **SHARED, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": 8,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
MEMBERS: dict[str, dict[str, Any]] = {
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "gemma2": {},
    "gemma3_text": {},
    "glm4_moe": {**SHARED, "first_k_dense_replace": 1},
    "gpt_oss": LOCAL,
    "llama": {},
    "llama4_text": {**LOCAL, "intermediate_size_mlp": 512, "interleave_moe_layer_step": 1},
    "minimax_m2": LOCAL,
    "mistral": {},
    "mixtral": LOCAL,
    "olmo2": {},
    "qwen2": {},
    "qwen2_moe": {**ROUTED, "shared_expert_intermediate_size": 256},
    "qwen3": {},
    "qwen3_moe": ROUTED,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": {**ROUTED, **LINEAR, "shared_expert_intermediate_size": 128},
    "qwen3_next": {**ROUTED, **LINEAR, "shared_expert_intermediate_size": 128},
}


@pytest.mark.parametrize("model_type", MEMBERS)
def test_a_family_has_the_parameters_that_torch_counts(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    given = {**SMALL, **MEMBERS[model_type]}
    config = transformers.AutoConfig.for_model(model_type, **given)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    wanted = 2 * sum(each.numel() for each in built.parameters())
    for fields in ({**given, "model_type": model_type}, config.to_dict()):  # as short as can be, and with every field
        model = model_of(model_type, fields, "")
        assert model.assumptions == ()
        assert counts(model, Mapping(), 1).weight_bytes == wanted


def test_every_family_that_differs_is_counted_against_torch_or_says_what_is_left_out() -> None:
    counted = {id(family_of(each)) for each in MEMBERS}
    for name, family in FAMILIES.items():
        assert family == PLAIN or family.uncounted or id(family) in counted, name


def test_first_words_name_a_family() -> None:
    assert family_of("qwen3_moe") is FAMILIES["qwen3"]
    assert family_of("qwen3_5_moe_text") is FAMILIES["qwen3_5"]
    assert family_of("llama4_text") is FAMILIES["llama4"]
    for unknown in ("", "gemma3n_text", "llamas", "falcon_h1"):
        assert family_of(unknown) is None


def test_models_that_come_with_weft_are_of_known_families() -> None:
    for name, given in known_models().items():
        if not isinstance(given, str):
            assert model_of(name, given, "").assumptions == ()


def test_a_family_that_nobody_knows_is_told_in_every_report(tmp_path: Path) -> None:
    words = "unknown family 'novel<b>': counted as a plain decoder"
    model = model_of("new", {**SMALL, "model_type": "novel<b>"}, "")
    assert model.assumptions == (words,)
    made = plan(model, find_gpu("h200"), Traffic(isl=128, osl=16), Targets(), Settings(max_gpus=1))
    assert "unknown family &#x27;novel&lt;b&gt;&#x27;: counted as a plain decoder" in page(made)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**SMALL, "model_type": "novel<b>"}))
    command = ["plan", str(config), "--traffic", "isl=128,osl=16", "--max-gpus", "1"]
    assert words in " ".join(CliRunner().invoke(app, command).output.split())
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout.splitlines()[-1])
    assert told["assumptions"] == [words]


def test_a_configuration_without_a_family_and_one_counted_in_part_say_so() -> None:
    assert model_of("", SMALL, "").assumptions == ("no family (model_type): counted as a plain decoder",)
    (words,) = model_of("", {**SMALL, "model_type": "gpt2"}, "").assumptions
    assert "not counted" in words
