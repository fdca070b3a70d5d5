"""Workers for prompts and for decoding: as few as the traffic takes."""

from __future__ import annotations

import pytest

from weft.planner.disaggregated import Disaggregated, disaggregate
from weft.planner.hardware import find_gpu
from weft.planner.model import find_model
from weft.planner.search import Settings, candidates, open_costs
from weft.planner.traffic import Traffic, targets_of

H200 = find_gpu("h200")


def split(name: str, traffic: Traffic, slo: str = "", most: int = 16) -> Disaggregated:
    settings = Settings(max_gpus=most)
    found, _ = candidates(find_model(name), H200, open_costs(H200, None, "weft"), traffic, settings)
    made = disaggregate(found, H200, traffic, settings, targets_of(slo))
    assert made is not None
    return made


@pytest.mark.parametrize(("isl", "osl"), [(1024, 256), (8, 4000), (60_000, 8)])
def test_a_light_load_takes_a_worker_of_each_kind(isl: int, osl: int) -> None:
    found = split("Llama-3.1-8B", Traffic(isl, osl, rate=0.1))
    assert (found.prefill_workers, found.decode_workers, found.gpus) == (1, 1, 2)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-30B-A3B"])
def test_a_rate_is_served_and_by_no_worker_fewer(name: str) -> None:
    found = split(name, Traffic(2000, 300, rate=500.0), "tpot=40ms")
    assert found.rate >= 500
    prompts = 0.8 / found.prefill.service.prompt
    decoded = found.decode.figure("concurrency") / found.tpot / 300
    assert (found.prefill_workers - 1) * prompts < 500 and (found.decode_workers - 1) * decoded < 500


@pytest.mark.parametrize(("isl", "osl"), [(1024, 256), (8, 4000), (60_000, 8)])
@pytest.mark.parametrize("most", [4, 16])
def test_without_a_rate_there_are_no_more_gpus_than_a_replica_may_have(isl: int, osl: int, most: int) -> None:
    assert split("Llama-3.1-8B", Traffic(isl, osl), most=most).gpus <= most
