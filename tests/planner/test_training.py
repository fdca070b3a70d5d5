"""Training plans: what a rank holds, what a step takes, and jobs that cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from weft.planner.errors import CapacityError, TrafficError
from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping
from weft.planner.model import find_model
from weft.planner.op_costs import ROWS, STREAMED, OpCosts
from weft.planner.program import Gemm
from weft.planner.search import open_costs
from weft.planner.training import Job, Layout, TrainingCosts, activation_bytes, job_of, plan_training, uneven
from weft.tools.cli import app

H100 = find_gpu("h100")


def costs(name: str, job: Job) -> TrainingCosts:
    return TrainingCosts(find_model(name), H100, open_costs(H100, None, "weft"), job)


def test_a_rank_holds_what_a_hand_count_says() -> None:
    priced = costs("Llama-3.1-8B", Job(64, 64, 4096))
    parameters = 8_030_261_248
    held = priced.memory(Layout(Mapping(), 64, 1, 1, True, False), 1)
    assert held["weights"] == pytest.approx(2 * parameters)
    assert held["gradients"] == pytest.approx(4 * parameters)
    assert held["optimizer"] == pytest.approx(12 * parameters / 64)
    sharded = priced.memory(Layout(Mapping(), 64, 1, 1, True, True), 1)
    assert sharded["gradients"] == pytest.approx(4 * parameters / 64)


def test_activations_are_those_of_a_layer_s_matmuls() -> None:
    # 4 inputs of the hidden size, queries, keys, values and their sum, and three of the block's width; two bytes each.
    whole, inputs = activation_bytes(find_model("Llama-3.1-8B"), Mapping())
    layer = 4 * 4096 + (32 * 128 * 2 + 8 * 128 * 2) + 3 * 14336
    assert whole == 32 * layer * 2
    assert inputs == 32 * 4096 * 2
    assert activation_bytes(find_model("Llama-3.1-8B"), Mapping(4))[0] == whole / 4


def test_parts_are_the_step_and_no_step_beats_the_peak() -> None:
    priced = costs("Llama-3.1-70B", Job(64, 128, 4096))
    for layout in (
        Layout(Mapping(8), 8, 1, 1, True, True),
        Layout(Mapping(8, 4), 2, 1, 5, False, False),
        Layout(Mapping(4, 2), 8, 2, 1, True, False),
    ):
        found = priced.step(layout)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        assert 0.1 < found.mfu < 1.0
        assert found.tokens_s_gpu * found.seconds * 64 == pytest.approx(128 * 4096)


def test_pipelines_wait_less_in_pieces_and_recomputing_takes_time_for_room() -> None:
    priced = costs("Llama-3.1-70B", Job(64, 64, 4096))
    plain = priced.step(Layout(Mapping(8, 4), 2, 1, 1, False, False))
    pieces = priced.step(Layout(Mapping(8, 4), 2, 1, 5, False, False))
    again = priced.step(Layout(Mapping(8, 4), 2, 1, 1, True, False))
    assert pieces.parts["pipeline bubble"] == pytest.approx(plain.parts["pipeline bubble"] / 5)
    assert again.seconds > plain.seconds
    assert again.memory["activations"] < plain.memory["activations"] / 3


def test_layers_that_do_not_divide_make_the_longest_stage_longer() -> None:
    model = find_model("Llama-3.1-405B")
    assert uneven(model, 16, 8) == pytest.approx(128 / 126)
    assert uneven(model, 18, 1) == 1.0


def test_the_quickest_layout_that_fits_is_chosen() -> None:
    found = plan_training(find_model("Llama-3.1-8B"), H100, job_of("gpus=64,batch=256,seq=4096,tokens=1e12"))
    assert found.chosen.bytes <= H100.memory
    assert all(each.seconds >= found.chosen.seconds * 0.99 for each in found.alternatives)
    assert found.days == pytest.approx(1e12 / (found.chosen.tokens_s_gpu * 64) / 86400)
    assert found.chosen.layout.mapping.gpus * found.chosen.layout.copies == 64


def test_experts_are_laid_out_too() -> None:
    found = plan_training(find_model("Mixtral-8x7B"), H100, job_of("gpus=64,batch=256,seq=4096"))
    assert 0.1 < found.chosen.mfu < 0.9


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("gpus=0,batch=8,seq=8", "gpus"), ("gpus=8,batch=8", "seq"), ("gpus=8,batch=x,seq=8", "batch"),
        ("gpus=8,batch=8,seq=8,colour=3", "colour"), ("gpus=8.5,batch=8,seq=8", "gpus"),
    ],
)  # fmt: skip
def test_a_job_that_is_none_names_its_field(text: str, field: str) -> None:
    with pytest.raises(TrafficError, match=field):
        job_of(text)


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(CapacityError, match=r"lacks [\d.]+ GB") as caught:
        plan_training(find_model("Llama-3.1-405B"), H100, job_of("gpus=16,batch=16,seq=8192"))
    assert "gpus=" in str(caught.value.hint)
    with pytest.raises(CapacityError, match="divides into no layout"):
        plan_training(find_model("Llama-3.1-8B"), H100, job_of("gpus=7,batch=1,seq=128"))


def test_the_command_plans_training() -> None:
    seen = CliRunner().invoke(
        app, ["plan", "Llama-3.1-8B", "--gpu", "h100", "--train", "gpus=64,batch=256,seq=4096", "--json"]
    )
    assert seen.exit_code == 0, seen.output
    told = json.loads(seen.stdout)
    assert told["chosen"]["mfu"] > 0.1 and told["launch"].startswith("torchrun --nnodes 8")


def test_the_page_of_a_training_plan_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.html"
    given = ["plan", "Llama-3.1-8B", "--train", "gpus=8,batch=64,seq=2048,tokens=1e9", "--html", str(path)]
    assert CliRunner().invoke(app, given).exit_code == 0
    text = path.read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("</svg>") == 2
    assert "http" not in text.split("Hardware:")[0]


def test_options_of_a_service_are_refused() -> None:
    given = ["plan", "Llama-3.1-8B", "--train", "gpus=8,batch=64,seq=2048", "--precision", "fp8"]
    seen = CliRunner().invoke(app, given)
    assert seen.exit_code != 0 and "--precision does not go with --train" in " ".join(seen.output.split())


def test_a_gpu_at_work_without_a_pause_keeps_a_part_of_its_peak() -> None:
    op, costs = Gemm("", 8192, 8192), OpCosts(find_gpu("h200"), None, find_gpu("h200"))
    short, long = costs.gemm(op).seconds, OpCosts(costs.gpu, None, costs.gpu, sustained=True).gemm(op).seconds
    few, many = ROWS <= 64, ROWS >= 4096
    np.testing.assert_array_equal(short[few], long[few])  # memory binds, whatever the clock
    np.testing.assert_allclose(short[many] / long[many], costs.gpu.sustained)
    fp8 = replace(op, weights="fp8")
    np.testing.assert_array_equal(
        costs.gemm(fp8).seconds, OpCosts(costs.gpu, None, costs.gpu, sustained=True).gemm(fp8).seconds
    )


def test_a_backward_pass_has_the_matmuls_of_both_gradients() -> None:
    priced, rows = costs("Llama-3.1-8B", Job(8, 8, 4096)), 4096
    forward, backward = priced.passes(Mapping(), 1)
    shapes = {(6144, 4096): 32, (4096, 4096): 32, (28672, 4096): 32, (4096, 14336): 32, (128256, 4096): 1}
    ops = priced.costs
    wanted = sum(
        count * float(ops.gemm(Gemm("", k, n)).at(rows) + ops.gemm(Gemm("", k, rows)).at(n))
        for (n, k), count in shapes.items()
    )
    assert backward["matmul"] == pytest.approx(wanted)
    assert backward["attention"] == pytest.approx(2.93 * forward["attention"])
    # Read a gradient in bf16, read and write its sum in fp32; read logits, and write their gradients.
    streamed = H100.bandwidth * STREAMED
    assert backward["gradient sums"] == pytest.approx(8_030_261_248 * 10 / streamed, rel=1e-3)
    assert forward["loss"] + backward["loss"] == pytest.approx(rows * 128256 * 6 / streamed)


def test_recomputing_is_told_apart() -> None:
    priced = costs("Llama-3.1-8B", Job(64, 64, 4096))
    plain, again = (priced.step(Layout(Mapping(), 64, 1, 1, recompute, False)) for recompute in (False, True))
    assert again.parts["recomputing"] == pytest.approx(again.seconds - plain.seconds)
    assert {name: again.parts[name] for name in ("matmul", "attention", "loss")} == {
        name: plain.parts[name] for name in ("matmul", "attention", "loss")
    }


def test_a_causal_mask_leaves_half_of_attention() -> None:
    priced = costs("Llama-3.1-8B", Job(64, 64, 4096))
    found = priced.step(Layout(Mapping(), 64, 1, 1, False, False))
    attention = 3 * 4 * 4096**2 * 4096 * 32 * 64
    assert found.mfu - found.causal_mfu == pytest.approx(attention / 2 / (found.seconds * 64 * H100.bf16), rel=1e-3)


def test_a_measured_step_is_near_and_no_quicker_than_planned() -> None:
    # AdamW on an H200, 4 × 2,048 tokens: a whole step that nothing was fitted to.
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-17-22bb9f5-gpu-train.json"
    cases = json.loads(results.read_text(encoding="utf-8"))["cases"]
    measured = next(each["seconds"] for each in cases if each["name"] == "llama_1b_train")
    gpu = find_gpu("h200")
    priced = TrainingCosts(
        find_model("Llama-3.2-1B"), gpu, replace(open_costs(gpu, None, "weft"), sustained=True), Job(1, 4, 2048)
    )
    planned = priced.step(Layout(Mapping(), 1, 4, 1, False, False)).seconds
    assert 0.85 * measured["weft"] < planned < measured["weft"] < measured["inductor"]


@pytest.mark.parametrize(("name", "like"), [("Qwen3-32B-FP8", "Qwen3-32B"), ("Qwen3-235B-A22B-FP8", "Qwen3-235B-A22B")])
def test_a_checkpoint_in_fewer_bits_is_trained_in_bf16(name: str, like: str) -> None:
    job = Job(64, 64, 4096)
    layout = Layout(Mapping(1, 1, 8, 1, 8) if "A22B" in name else Mapping(), 8, 1, 1, True, True)
    one, other = costs(name, job).step(layout), costs(like, job).step(layout)
    assert (one.seconds, one.memory) == (pytest.approx(other.seconds), pytest.approx(other.memory))
    found = plan_training(find_model(name), find_gpu("h200"), Job(256, 256, 4096))
    assert "planned in bf16" in found.model.assumptions[-1] and found.chosen.mfu < 0.72
