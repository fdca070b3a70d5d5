"""Names of checkpoints: which model of the catalogue they are, and in which format."""

from __future__ import annotations

import pytest

from weft.planner.errors import ModelError
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model, known_models
from weft.planner.model_names import Named, entry_of


@pytest.mark.parametrize(
    ("name", "entry", "precision"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", ""),
        ("Qwen/Qwen3-30B-A3B-FP8", "qwen3-30b-a3b", "fp8_block"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b", ""),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b-instruct", "fp8"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1-0528", "nvfp4"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b", ""),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b", ""),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "int4"),
    ],
)
def test_words_of_a_release_change_no_sizes(name: str, entry: str, precision: str) -> None:
    assert entry_of(name, known_models()) == Named(entry, precision, exact=False)
    model = find_model(name)
    assert model.layers == find_model(entry).layers
    assert any(entry in each for each in model.assumptions)
    assert model.weights == (precision or find_model(entry).weights)


@pytest.mark.parametrize("name", ["Llama-3.1-8B-Vision", "Qwen3-31B", "llama", "no/Such-Instruct", "instruct", ""])
def test_another_model_is_not_taken_for_a_known_one(name: str) -> None:
    with pytest.raises(ModelError):
        find_model(name)


def test_a_name_as_it_stands_goes_first() -> None:
    assert entry_of("Qwen/Qwen3-32B-FP8", known_models()) == Named("qwen3-32b-fp8")
    assert not find_model("openai/gpt-oss-120b").assumptions


def test_weights_alone_in_four_bits_are_those_of_matmuls_where_there_are_no_experts() -> None:
    dense, experts = find_model("llama-3.1-8b"), find_model("mixtral-8x7b")
    assert dense.with_precision("int4").weights == "int4"
    assert experts.with_precision("int4").weights == "bf16"
    whole, packed = (rank_program(each, Mapping()).weight_bytes for each in (dense, dense.with_precision("int4")))
    assert 0.28 < packed / whole < 0.4  # embedding and head stay as they are
