"""Counts are exact: parameters, operations and cache of six models, by hand and by torch on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from weft.planner.counts import counts
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model, known_models, model_of

MODELS = ["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"]
LAYERS, TOKENS = 4, 32


def short(name: str) -> dict[str, Any]:
    """A known configuration with a few of its layers, unquantized."""
    given = {key: value for key, value in known_models()[name].items() if key != "quantization_config"}
    given["num_hidden_layers"] = LAYERS
    if "layer_types" in given:
        given["layer_types"] = given["layer_types"][:LAYERS]
    return given


@pytest.mark.parametrize("name", MODELS)
def test_torch_counts_the_same(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    given = short(name)
    fields = dict(given)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    if hasattr(built, "set_experts_implementation"):
        built.set_experts_implementation("batched_mm")
    found = counts(model_of(name, given, name), Mapping(), TOKENS, all_logits=True)
    assert found.weight_bytes == 2 * sum(each.numel() for each in built.parameters())
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(ids, attention_mask=mask, position_ids=ids, use_cache=False)
    # Some releases of transformers find the angles of rotary embeddings by a product, which is no work of the model's.
    angles = [sum(each.values()) for name, each in counter.get_flop_counts().items() if name.endswith("rotary_emb")]
    assert found.flops == counter.get_total_flops() - sum(angles)


@pytest.mark.parametrize(
    ("name", "parameters", "kv"),
    [
        ("Llama-3.1-8B", 8_030_261_248, 2 * 32 * 8 * 128 * 2),
        ("Llama-3.1-70B", 70_553_706_496, 2 * 80 * 8 * 128 * 2),
        ("Mixtral-8x7B", 46_702_792_704, 2 * 32 * 8 * 128 * 2),
        ("Qwen3-30B-A3B", 30_532_122_624, 2 * 48 * 4 * 128 * 2),
        ("DeepSeek-V3", 671_026_404_352, 61 * (512 + 64) * 2),
        ("gpt-oss-120b", 116_829_156_672, 2 * 36 * 8 * 64 * 2),
    ],
)
def test_whole_models_by_hand(name: str, parameters: int, kv: int) -> None:
    model = find_model(name).with_precision("bf16")
    found = counts(model, Mapping(), 1)
    assert found.weight_bytes == 2 * parameters
    assert found.kv_bytes_per_token == kv


def grouped(hidden: int, heads: int, shared: int, size: int) -> int:
    """Multiplications of a token in the projections of attention whose heads share keys and values."""
    return hidden * (heads + 2 * shared) * size + heads * size * hidden


LATENT = 7168 * 1536 + 1536 * 128 * (128 + 64) + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168


@pytest.mark.parametrize(
    ("name", "layers", "scores", "head"),
    [
        ("Llama-3.1-8B", 32 * (grouped(4096, 32, 8, 128) + 3 * 4096 * 14336), 32 * 32 * 2 * 128, 4096 * 128256),
        ("Llama-3.1-70B", 80 * (grouped(8192, 64, 8, 128) + 3 * 8192 * 28672), 80 * 64 * 2 * 128, 8192 * 128256),
        (
            "Mixtral-8x7B",
            32 * (grouped(4096, 32, 8, 128) + 4096 * 8 + 2 * 3 * 4096 * 14336),
            32 * 32 * 2 * 128,
            4096 * 32000,
        ),
        (
            "Qwen3-30B-A3B",
            48 * (grouped(2048, 32, 4, 128) + 2048 * 128 + 8 * 3 * 2048 * 768),
            48 * 32 * 2 * 128,
            2048 * 151936,
        ),
        (
            "DeepSeek-V3",
            61 * LATENT + 3 * 3 * 7168 * 18432 + 58 * (7168 * 256 + (8 + 1) * 3 * 7168 * 2048),
            61 * 128 * (128 + 64 + 128),
            7168 * 129280,
        ),
        (
            "gpt-oss-120b",
            36 * (grouped(2880, 64, 8, 64) + 2880 * 128 + 4 * 3 * 2880 * 2880),
            36 * 64 * 2 * 64,
            2880 * 201088,
        ),
    ],
)
def test_operations_of_whole_models_by_hand(name: str, layers: int, scores: int, head: int) -> None:
    found = counts(find_model(name).with_precision("bf16"), Mapping(), TOKENS, all_logits=True)
    assert found.flops == 2 * TOKENS * (layers + TOKENS * scores + head)


def test_ranks_of_tensor_parallelism_hold_all_weights_once() -> None:
    model = find_model("Llama-3.1-8B")
    whole, part = (rank_program(model, Mapping(tp=tp)).weight_bytes for tp in (1, 8))
    norms = (2 * model.depth + 1) * model.hidden * 2
    assert part * 8 - 7 * norms == whole


def test_collectives_of_tensor_parallelism_by_hand() -> None:
    found = counts(find_model("Llama-3.1-8B"), Mapping(tp=8), 100).collectives
    assert found["all_reduce"] == (65, 65 * 100 * 4096 * 2)
    assert found["all_gather"] == (1, 128256 * 2)
    assert counts(find_model("Llama-3.1-8B"), Mapping(), 100).collectives == {}


def test_data_parallel_attention_dispatches_and_combines() -> None:
    found = counts(find_model("DeepSeek-V3"), Mapping(dp=8, ep=8), 10).collectives
    assert found["all_gather"] == (58, 58 * 10 * 7168 * 8)
    assert found["reduce_scatter"] == (58, 58 * 10 * 7168 * 8 * 2)
    assert "all_reduce" not in found
