"""Plans: what fits, what is chosen, what gives way, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import planner
from weft.planner.closed_form import Draft
from weft.planner.errors import CapacityError, HardwareError, ModelError, TrafficError
from weft.planner.hardware import find_gpu
from weft.planner.model import find_model, model_of
from weft.planner.page import page
from weft.planner.plan import Plan, plan
from weft.planner.report import figures
from weft.planner.search import Settings, candidates, front, open_costs, points, whole_nodes
from weft.planner.traffic import Targets, Traffic, targets_of, traffic_of
from weft.tools.cli import app

H200 = find_gpu("h200")


@pytest.fixture(scope="module")
def made() -> Plan:
    traffic, targets = traffic_of("isl=1024,osl=256,rate=40"), targets_of("ttft=1s,tpot=40ms")
    return plan(find_model("Llama-3.1-8B"), H200, traffic, targets, Settings(max_gpus=8))


def test_a_plan_meets_its_targets_and_its_load(made: Plan) -> None:
    told = figures(made)
    assert told["ok"]
    assert told["simulated"]["ttft_ms"]["p90"] <= 1000
    assert told["simulated"]["tpot_ms"]["p90"] <= 40
    assert made.replicas * made.rate >= 40
    assert made.gpus == (made.replicas + 1) * made.chosen.candidate.mapping.gpus
    assert abs(sum(told["breakdown"].values()) - 1) < 1e-9
    assert {each["from"] for each in told["operations"]} <= {
        "measured",
        "interpolated",
        "transferred",
        "roofline",
        "specification",
    }
    json.dumps(told)


def test_nobody_on_the_front_is_beaten(made: Plan) -> None:
    for one in made.front:
        assert not any(two.per_gpu > one.per_gpu * 1.001 and two.per_user > one.per_user * 1.001 for two in made.front)


def test_the_page_stands_alone(made: Plan) -> None:
    text = page(made)
    assert text.count("<svg") == 2
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text


def test_what_fits_nowhere_says_by_how_much() -> None:
    with pytest.raises(CapacityError, match=r"lacks [\d.]+ GB") as refused:
        plan(find_model("DeepSeek-V3"), H200, Traffic(), Targets(), Settings(max_gpus=4))
    assert "more GPUs" in str(refused.value)


def test_targets_that_cannot_be_met_say_which_gives_way() -> None:
    found = plan(
        find_model("Llama-3.1-8B"), H200, Traffic(rate=1), targets_of("ttft=0.001ms,tpot=50ms"), Settings(max_gpus=8)
    )
    assert len(found.gives_way) == 1
    assert found.gives_way[0].startswith("ttft")


def test_more_bandwidth_is_more_tokens(made: Plan) -> None:
    assert made.sensitivity["memory bandwidth"] > 0
    assert made.sensitivity["network"] == pytest.approx(0, abs=1e-6)


def test_drafts_that_are_accepted_help() -> None:
    def best(settings: Settings) -> float:
        traffic = Traffic(isl=512, osl=512)
        found, _ = candidates(find_model("Llama-3.1-8B"), H200, open_costs(H200, None, "weft"), traffic, settings)
        return max(each.per_user for each in points(found))

    assert best(Settings(max_gpus=1, draft=Draft(3, 0.8))) > 1.5 * best(Settings(max_gpus=1))


def test_a_second_search_reads_and_makes_nothing_anew() -> None:
    costs, traffic, settings = open_costs(H200, None, "weft"), Traffic(), Settings(max_gpus=32)
    model = find_model("Llama-3.1-70B")
    first = points(candidates(model, H200, costs, traffic, settings)[0])
    assert costs.tables is not None
    kept = [dict(each) for each in (costs.kept, costs.grids, costs.tables.read)]
    second = points(candidates(model, H200, costs, traffic, settings)[0])
    for before, after in zip(kept, (costs.kept, costs.grids, costs.tables.read), strict=True):
        assert before.keys() == after.keys()
        assert all(before[key] is after[key] for key in before)
    assert [(each.per_gpu, each.per_user) for each in front(first)] == [
        (each.per_gpu, each.per_user) for each in front(second)
    ]


def test_an_evaluation_tells_the_planners_speed() -> None:
    folder = Path(planner.__file__).parent / "data"
    done = CliRunner().invoke(app, ["plan", "--evaluate", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    speed = json.loads(done.stdout.splitlines()[-1])["speed"]
    assert set(speed) == {"configurations_s", "iterations_s"} and all(each > 0 for each in speed.values())


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("isl=0,osl=1", "isl"), ("isl=a", "isl"), ("speed=1", "speed"), ("isl=1,prefix=2", "prefix"),
        ("isl=inf", "isl"), ("isl=nan", "isl"), ("osl=1e30", "osl"), ("rate=-1", "rate"), ("rate=1e300", "rate"),
        ("rate=1e-320", "rate"), ("burst=0", "burst"), ("burst=1e300", "burst"), ("spread=1", "spread"),
        ("isl=", "isl"), ("rate=0", "rate"), ("isl=1.5", "isl"), ("osl=0.5", "osl"), ("osl=10.25", "osl"),
        ("isl=8,isl=9", "isl"), ("", "empty"), (" ", "empty"),
    ],
)  # fmt: skip
def test_bad_traffic_names_the_field(text: str, field: str) -> None:
    with pytest.raises(TrafficError, match=field):
        traffic_of(text)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e-320", "1e308s", "1e400", "soon", "ms", ""])
@pytest.mark.parametrize("name", ["ttft", "tpot"])
def test_bad_targets_are_named(name: str, value: str) -> None:
    with pytest.raises(TrafficError, match=name):
        targets_of(f"{name}={value}")


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("tpot=30", Targets(tpot=0.03)), ("tpot=30ms", Targets(tpot=0.03)), ("tpot=0.03s", Targets(tpot=0.03)),
        ("ttft=2s,tpot=800us", Targets(2.0, 0.0008)), ("ttft=500", Targets(0.5)), ("ttft=1ms", Targets(0.001)),
    ],
)  # fmt: skip
def test_targets_have_units_and_are_milliseconds_without(text: str, targets: Targets) -> None:
    found = targets_of(text)
    assert (found.ttft, found.tpot) == (pytest.approx(targets.ttft), pytest.approx(targets.tpot))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("tpot=30s", "tpot=30ms"), ("tpot=30000", "tpot=30ms"), ("tpot=0.03", "tpot=0.03s"), ("ttft=0.5", "ttft=0.5s"),
        ("ttft=2", "ttft=2s"), ("tpot=1ms,tpot=2ms", "once"),
    ],
)  # fmt: skip
def test_targets_that_nobody_means_are_refused_with_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(TrafficError) as refused:
        targets_of(text)
    assert meant in str(refused.value.hint)


@pytest.mark.parametrize("value", ["-1", "NaN", "Infinity", "1e300", "1" + "0" * 400, '"x"', "null", "true", "[1]"])
@pytest.mark.parametrize("name", ["seconds", "isl", "osl"])
def test_bad_requests_of_a_trace_are_named(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / "trace.json"
    told = {"seconds": "0", "isl": "8", "osl": "8", name: value}
    path.write_text("[{" + ", ".join(f'"{key}": {each}' for key, each in told.items()) + "}]")
    with pytest.raises(TrafficError, match=f"'{name}'") as refused:
        traffic_of(str(path))
    assert "request 0" in str(refused.value)


@pytest.mark.parametrize("rows", ["0,100,10", "0,100,10\n1e-300,200,30", "7,100,10\n7,200,30\n7,300,30"])
def test_requests_that_all_come_at_once_are_refused(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"seconds,isl,osl\n{rows}\n")
    with pytest.raises(TrafficError, match="'seconds' of the trace gives no rate"):
        traffic_of(str(path))


def test_a_trace_with_several_requests_in_a_second_has_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,isl,osl\n" + "\n".join(f"{index // 4},100,{10 + index}" for index in range(40)))
    found = traffic_of(str(path))
    assert found.rate == pytest.approx(39 / 9)
    requests, arrivals = found.requests(found.rate, 100)  # more than it has: it comes round again
    assert [each.output for each in requests[40:44]] == [10, 11, 12, 13]
    assert arrivals == sorted(arrivals) and arrivals[40] > arrivals[39]
    assert 99 / arrivals[-1] == pytest.approx(found.rate, rel=0.05)
    running = found.running(500)
    assert all(each.number < 0 and each.output >= 1 and each.cached == each.prompt for each in running)
    assert {each.prompt + each.output - 100 for each in running} <= set(range(10, 50))


def test_traces_are_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,isl,osl\n0,100,10\n1,200,30\n2,300,20\n")
    found = traffic_of(str(path))
    assert (found.isl, found.osl, found.rate) == (200, 20, 1.0)
    requests, arrivals = found.requests(3.0, 3)
    assert [each.prompt for each in requests] == [100, 200, 300] and arrivals[-1] == pytest.approx(2 / 3)
    path.write_text("seconds,isl\n0,100\n")
    with pytest.raises(TrafficError, match="'osl'"):
        traffic_of(str(path))
    with pytest.raises(TrafficError, match="cannot be read"):
        traffic_of(str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": "x"}, "num_attention_heads"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_bad_configurations_name_the_field(change: dict[str, object], field: str) -> None:
    given = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "intermediate_size": 128,
    }
    assert model_of("small", given, "").depth == 2
    with pytest.raises(ModelError, match=field):
        model_of("small", {**given, **change}, "")


def test_windows_keep_no_more_than_a_window() -> None:
    given = {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
        "intermediate_size": 128,
        "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2,
    }  # fmt: skip
    windows = [layer.mixer.window for layer, _ in model_of("small", given, "").layers]  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(windows) == [0, 32]


def test_the_command_prints_json_and_writes_its_page(tmp_path: Path) -> None:
    config = tmp_path / "small" / "config.json"
    config.parent.mkdir()
    config.write_text(
        json.dumps(
            {
                "hidden_size": 1024,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "vocab_size": 1000,
                "intermediate_size": 4096,
            }
        )
    )
    html = tmp_path / "plan.html"
    done = CliRunner().invoke(
        app, ["plan", str(config.parent), "--traffic", "isl=128,osl=32,rate=5", "--html", str(html), "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] and told["model"] == "small" and told["gpus"] >= 2
    assert html.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none-such"], "no model"),
        (["Llama-3.1-8B", "--gpu", "abacus"], "abacus"),
        (["Llama-3.1-8B", "--slo", "speed=1"], "speed"),
        (["Llama-3.1-8B", "--engine", "steam"], "steam"),
        (["Llama-3.1-8B", "--precision", "int1"], "int1"),
        (["Llama-3.1-8B", "--price", "nan"], "price"),
        (["Llama-3.1-8B", "--draft", "tokens=inf"], "drafts"),
        (["Llama-3.1-8B", "--draft", "tokens=3,cost=nan"], "drafts"),
        ([], "missing"),
    ],
)
def test_bad_command_lines_say_what_is_wrong(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert done.exit_code in (1, 2)
    assert words in json.loads(done.stdout.splitlines()[-1])["message"]


def test_ranks_fill_nodes_of_any_size() -> None:
    six = replace(H200, gpus_per_node=6, nvlink_domain=6)
    assert whole_nodes(six, 24) == [1, 2, 3, 6, 12, 24]
    assert whole_nodes(H200, 64) == [1, 2, 4, 8, 16, 32, 64]
    assert 36 in whole_nodes(find_gpu("gb200"), 72)
    fields = {"num_hidden_layers": 6, "num_attention_heads": 12, "num_key_value_heads": 3, "intermediate_size": 4608}
    odd = model_of("odd", {"model_type": "llama", "hidden_size": 1536, "vocab_size": 50001, **fields}, "odd.json")
    found, _ = candidates(odd, six, open_costs(six, None, "weft"), Traffic(), Settings(max_gpus=6))
    assert {each.mapping.tp for each in found} == {1, 3, 6}


def test_hardware_is_read_from_yaml_with_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: h200\ndevice: mine\nbandwidth: 1.2e12\nnvlink_domain: 6\n", encoding="utf-8")
    found = find_gpu(str(path))
    assert (found.device, found.bandwidth, found.nvlink_domain) == ("mine", 1.2e12, 6)
    path.write_text("base: h200\nbandwidth: fast\n", encoding="utf-8")
    with pytest.raises(HardwareError, match="bandwidth"):
        find_gpu(str(path))


def test_a_request_that_is_too_long_says_how_long_one_may_be() -> None:
    with pytest.raises(CapacityError, match=r"[\d,]+ tokens of cache") as caught:
        plan(find_model("Llama-3.1-8B"), H200, Traffic(isl=1e8, osl=10), Targets(), Settings(max_gpus=2))
    assert "shorter requests" in str(caught.value.hint)


def test_a_light_load_takes_no_more_gpus_than_it_needs() -> None:
    found = plan(find_model("llama-3.1-8b"), find_gpu("h200"), Traffic(1000, 100, rate=1.0), Targets(), Settings())
    assert (found.replicas, found.spare, found.gpus) == (1, 1, 2)
    heavy = plan(find_model("llama-3.1-8b"), find_gpu("h200"), Traffic(1000, 100, rate=500.0), Targets(), Settings())
    assert heavy.gpus >= heavy.traffic.rate / heavy.rate * heavy.chosen.candidate.mapping.gpus


def test_engines_are_started_with_what_the_plan_is_for() -> None:
    traffic, settings = Traffic(1000, 500), Settings(kv="fp8", draft=Draft(2, 0.8, 0.1))
    found = plan(find_model("deepseek-v3"), find_gpu("h200"), traffic, Targets(), settings)
    dp, told = found.chosen.candidate.mapping.dp, figures(found)["launch"]
    assert dp > 1
    seats = int(told["vllm"].split("--max-num-seqs ")[1].split()[0])
    assert seats * dp >= found.chosen.figure("concurrency") > (seats - 1) * dp
    assert "--kv-cache-dtype fp8" in told["vllm"] and '"num_speculative_tokens": 2' in told["vllm"]
    assert "--extra_llm_api_options options.yaml" in told["tensorrt-llm"]
    for words in ("enable_attention_dp: true", "dtype: fp8", "max_draft_len: 2"):
        assert words in told["options.yaml"]


def test_requests_that_the_model_was_not_made_for_are_told() -> None:
    model = replace(find_model("llama-3.1-8b"), max_length=4096)
    for length, told in ((3000, 0), (4000, 1)):
        found = plan(model, find_gpu("h200"), Traffic(length, 100), Targets(), Settings())
        assert len(found.assumptions) == told
        assert all("4,096" in each for each in found.assumptions)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("llama-2-70b", 4096), ("mistral-7b", 32_768), ("mixtral-8x22b", 65_536), ("llama-3.1-8b", 131_072),
        ("qwen3-coder-480b-a35b", 262_144), ("llama-4-maverick", 1_048_576), ("llama-4-scout", 10_485_760),
    ],
)  # fmt: skip
def test_models_of_the_catalogue_allow_what_their_configurations_say(name: str, allowed: int) -> None:
    assert find_model(name).max_length == allowed


@pytest.mark.parametrize(("isl", "longest"), [(3000, 3101), (3995, 4096), (3996, 4096), (4000, 4101)])
def test_an_engine_is_started_for_no_more_than_the_model_allows(isl: int, longest: int) -> None:
    model = replace(find_model("llama-3.1-8b"), max_length=4096)
    found = plan(model, find_gpu("h200"), Traffic(isl, 100, spread=0.0), Targets(), Settings())
    assert f"--max-model-len {longest} " in figures(found)["launch"]["vllm"]
    assert len(found.assumptions) == (isl + 100 > 4096)
