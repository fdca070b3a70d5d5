"""Measured rows are simulated as their campaigns' scripts ran them."""

from __future__ import annotations

from weft.planner.scheduler import Limits
from weft.testing.planner_campaigns import conditions

ROW = {
    "campaign": "nvidia gap-analysis x", "model": "Qwen/Qwen3-32B", "backend": "vllm", "backend_version": "0.12.0",
    "isl": "1024", "osl": "128", "concurrency": "64", "tp_size": "2", "attention_dp_size": "1",
}  # fmt: skip


def limits(**changed: str) -> Limits:
    return Limits(**conditions({**ROW, **changed}).engine)


def test_a_step_has_the_tokens_that_the_scripts_give_it() -> None:
    assert limits().tokens == 64 + 1024 + 1500
    assert limits(attention_dp_size="4").tokens == 4 * (16 + 1024 + 1500)
    assert limits(backend="sglang").tokens == 1024 + 1500
    assert limits(campaign="inferencex export x").tokens == 8192
    assert limits(campaign="inferencex x", attention_dp_size="8").tokens == 8 * 8192
    assert limits(campaign="inferencex x", backend="trtllm", isl="8192").tokens == 64 * ((64 + 8192 + 64 + 63) // 64)
    assert limits(campaign="").tokens == Limits().tokens


def test_engines_behave_as_their_versions_do() -> None:
    assert not limits().ahead and limits(backend_version="0.18.0").ahead
    assert not limits(backend="trtllm", backend_version="1.0.0rc3").chunked
    assert not limits(backend="sglang", backend_version="0.5.1.post1").mixed
    assert limits(backend="sglang", backend_version="0.5.6.post2").mixed
    assert not limits(backend="sglang", backend_version="glm5-hopper").mixed
    assert limits(backend="sglang", backend_version="v0.5.6").mixed
    assert limits(backend_version="v0.18.0").ahead and not limits(backend_version="V0.12.0").ahead


def test_an_engine_whose_version_is_a_name_behaves_as_it_comes() -> None:
    assert limits(backend_version="").ahead and limits(backend_version="nightly").ahead


def test_prompts_are_held_where_the_script_holds_them() -> None:
    row = {"campaign": "inferencex x", "backend": "trtllm", "model": "meta-llama/Llama-3.1-70B", "osl": "1024"}
    assert limits(**row).held_steps == 20 and limits(**row).held_tokens == int(0.9 * 2048)
    assert not limits(**row, tp_size="8").held_steps
    assert not limits(**{**row, "osl": "8192"}).held_steps


def test_lengths_and_bursts_are_the_campaigns() -> None:
    drawn, fixed, unknown = (conditions({**ROW, "campaign": name}) for name in ("inferencex", "a gap-analysis", ""))
    assert (drawn.mean, fixed.mean, unknown.mean) == (0.9, 1.0, 1.0)
    assert drawn.first and fixed.first and not unknown.first
