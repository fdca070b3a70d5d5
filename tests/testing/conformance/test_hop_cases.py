"""Entries of torch's database of higher-order operators: what is said of those that nobody can run."""

from __future__ import annotations

import pytest

from weft.testing.conformance.hop_cases import entries, judge_hop, takes


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in entries(), reason=f"this release of torch has no entry {name}")


@needs("register_hook_simple")
def test_an_entry_whose_samples_cannot_be_made_is_skipped() -> None:
    verdict = judge_hop("register_hook_simple", "int64")
    assert verdict.status == "skipped" and verdict.said.startswith("no samples") and verdict.ok


@needs("inline_asm_elementwise_simple")
def test_an_entry_that_eager_does_not_run_here_is_skipped() -> None:
    verdict = judge_hop("inline_asm_elementwise_simple", "float32")
    assert verdict.status == "skipped" and "only supports CUDA" in verdict.said


def test_entries_for_gpus_count_on_a_processor_too() -> None:
    assert takes("flex_attention_simple", "float32") and not takes("flex_attention_simple", "int64")
    assert all(takes(name, "float32") for name in entries())
