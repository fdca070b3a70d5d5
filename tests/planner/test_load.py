"""What one replica bears: its queue stays short, its targets are kept and used up; users see the rate asked for."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from weft.planner.hardware import find_gpu
from weft.planner.load import MOST_USED, Load, Replica, excess, sustained
from weft.planner.model import find_model
from weft.planner.plan import plan
from weft.planner.report import figures, launch, load_words
from weft.planner.search import Point, Settings, candidates, meets, open_costs, points
from weft.planner.simulate import simulate
from weft.planner.traffic import Targets, Traffic, targets_of, traffic_of

H200 = find_gpu("h200")


@cache
def best(name: str, traffic: Traffic, targets: Targets) -> Point:
    found, _ = candidates(find_model(name), H200, open_costs(H200, None, "weft"), traffic, Settings(max_gpus=1))
    return max((each for each in points(found) if meets(each, targets)), key=lambda each: each.per_gpu)


def borne(name: str, traffic: Traffic, targets: Targets) -> tuple[Replica, Load]:
    return sustained(best(name, traffic, targets), traffic, Settings(max_gpus=1), targets)


@pytest.mark.parametrize(("isl", "osl"), [(1024, 256), (100, 20), (3000, 100)])
def test_no_queue_grows_at_the_rate_of_a_plan_without_targets(isl: int, osl: int) -> None:
    traffic = Traffic(isl, osl)
    replica, load = borne("Llama-3.1-8B", traffic, Targets())
    requests, arrivals = traffic.requests(load.rate, 5000, seed=3)
    seen = simulate(replica.timer, replica.limits, requests, arrivals)
    waited = seen.ttft[np.argsort(seen.arrival, kind="stable")]
    middle, late = np.median(waited[1250:2500]), np.median(waited[3750:])
    assert late < 2 * middle
    # At a tenth more than it serves when it is never idle, requests wait for longer and longer.
    requests, arrivals = traffic.requests(load.saturated * 1.1, 5000, seed=3)
    seen = simulate(replica.timer, replica.limits, requests, arrivals)
    waited = seen.ttft[np.argsort(seen.arrival, kind="stable")]
    assert np.median(waited[3750:]) > 3 * late


@pytest.mark.parametrize(("isl", "osl"), [(1024, 256), (100, 20)])
def test_a_replica_that_is_never_idle_serves_what_the_closed_form_says(isl: int, osl: int) -> None:
    traffic = Traffic(isl, osl)
    point = best("Llama-3.1-8B", traffic, Targets())
    served = Replica(point, traffic, Settings(max_gpus=1)).saturated
    assert served == pytest.approx(point.figure("rate") / osl, rel=0.1)


@pytest.mark.parametrize("text", ["tpot=30ms", "tpot=12ms", "ttft=150ms", "ttft=70ms,tpot=40ms"])
def test_the_rate_is_the_most_that_keeps_the_targets(text: str) -> None:
    traffic, targets = Traffic(1024, 256), targets_of(text)
    replica, load = borne("Llama-3.1-8B", traffic, targets)
    assert excess(load.outcome, targets) <= 1.0
    if load.rate < replica.saturated * MOST_USED:
        assert excess(replica.at(load.rate * 1.1), targets) > 1.0


def test_slack_below_the_targets_raises_the_rate_above_the_closed_form_s() -> None:
    # Concurrencies of the closed form are a fifth apart, and its TTFT is that of requests that come together.
    traffic, higher = Traffic(1024, 256), 0
    for text in ("tpot=30ms", "tpot=14ms", "ttft=100ms"):
        targets = targets_of(text)
        _, load = borne("Llama-3.1-8B", traffic, targets)
        higher += load.rate > best("Llama-3.1-8B", traffic, targets).figure("rate") / traffic.osl * 1.02
    assert higher


def test_users_see_the_rate_that_was_asked_for() -> None:
    traffic = traffic_of("isl=1024,osl=256,rate=45")
    found = plan(find_model("Llama-3.1-8B"), H200, traffic, targets_of("tpot=40ms"), Settings(max_gpus=1))
    told = figures(found)["simulated"]
    assert told["at_requests_s_per_replica"] == pytest.approx(45 / found.replicas)
    assert told["at_requests_s_per_replica"] < told["requests_s_per_replica"] < told["saturated_requests_s_per_replica"]
    assert told["tpot_ms"]["p90"] < told["at_most"]["tpot_ms"]["p90"] <= 40
    at, most = load_words(found)
    assert "22.5 requests/s a replica (45 over 2 replicas)" in at and "TPOT 40 ms at p90" in most
    free = plan(find_model("Llama-3.1-8B"), H200, Traffic(1024, 256), Targets(), Settings(max_gpus=1))
    assert free.at_rate == free.rate and "the most that it bears" in load_words(free)[0]


def test_targets_that_a_lone_request_breaks_give_way_and_the_rest_is_kept() -> None:
    traffic, targets = Traffic(1024, 256), targets_of("ttft=1ms,tpot=20ms")
    point = best("Llama-3.1-8B", traffic, targets_of("tpot=20ms"))
    _, load = sustained(point, traffic, Settings(max_gpus=1), targets)
    assert len(load.broken) == 1 and load.broken[0].startswith("ttft") and "where 1 ms was asked for" in load.broken[0]
    assert np.quantile(load.outcome.tpot, 0.9) <= 0.02


def test_answers_of_one_token_have_no_time_for_another() -> None:
    found = plan(find_model("Llama-3.1-8B"), H200, Traffic(500, 1, 3.0), targets_of("tpot=30ms"), Settings(max_gpus=1))
    assert not found.gives_way and found.rate == pytest.approx(found.load.saturated * MOST_USED)


def test_the_busiest_part_of_a_long_trace_is_simulated() -> None:
    # A request a second, but for a minute in which there are ten.
    times = [*range(600), *(600 + index / 10 for index in range(600)), *range(660, 1260)]
    traffic = Traffic(100, 10, 1799 / 1259, trace=tuple((float(when), 100, 10) for when in times))
    _, arrivals = traffic.requests(traffic.rate, 300)
    assert arrivals[0] == 0 and 299 / arrivals[-1] == pytest.approx(10, rel=0.01)
    _, whole = traffic.requests(2 * traffic.rate, 1800)
    assert whole[-1] == pytest.approx(1259 / 2, rel=1e-3)


def test_a_plan_keeps_its_targets_at_the_rate_of_each_replica_too() -> None:
    """Bursts are as long at a lower rate: a replica that keeps its targets at 14 requests/s broke them at 12.5."""
    traffic, targets = traffic_of("isl=1024,osl=256,rate=50,burst=4"), targets_of("ttft=400ms,tpot=15ms")
    made = plan(find_model("Llama-3.1-8B"), H200, traffic, targets, Settings(max_gpus=8))
    assert made.gives_way or excess(made.outcome, targets) <= 1.0
    assert made.at_rate == pytest.approx(traffic.rate / made.replicas)


def test_mappings_are_simulated_while_the_closed_form_promises_more_than_was_found() -> None:
    """Of a mapping of few GPUs it promised twice what its replica serves with long prompts."""
    model, traffic = find_model("glm-4.5-air"), traffic_of("isl=25000,osl=230,rate=40")
    plans = [
        plan(model, find_gpu("a100"), traffic, targets_of(words), Settings(max_gpus=16))
        for words in ("tpot=30ms", "tpot=30ms,ttft=2s")
    ]
    assert not plans[0].gives_way and plans[0].gpus <= plans[1].gpus


@pytest.mark.parametrize("rate", [1e-9, 1e-5])
def test_hardly_any_traffic_takes_a_worker_of_each_kind(rate: float) -> None:
    made = plan(find_model("qwen3-8b"), H200, Traffic(100, 10, rate), Targets(), Settings(max_gpus=2))
    assert made.disaggregated is not None
    assert made.disaggregated.prefill_workers == made.disaggregated.decode_workers == 1


def test_engines_are_told_of_other_weights_and_of_the_longest_request_of_a_trace() -> None:
    trace = tuple((0.1 * number, 100 + 10 * (number == 7), 20) for number in range(20))
    model, traffic = find_model("llama-3.1-8b"), Traffic(100.5, 20, 10.0, trace=trace)
    own, fp8, int4 = (
        launch(plan(each, H200, traffic, Targets(), Settings(max_gpus=1)))
        for each in (model, model.with_precision("fp8"), model.with_precision("int4"))
    )
    assert "--max-model-len 131" in own["vllm"] and "quantization" not in own["vllm"] and "weights" not in own
    assert "--quantization fp8" in fp8["vllm"] and "TensorRT-LLM takes weights in fp8" in fp8["weights"]
    assert "quantization" not in int4["vllm"] and "weights in int4" in int4["weights"]
