"""The closed form says what the simulation of the same replica says, and what it leaves out stays small."""

from __future__ import annotations

import numpy as np
import pytest

from weft.planner.capacity import CacheRule, memory, resident
from weft.planner.closed_form import Batching, serve
from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model
from weft.planner.scheduler import Limits
from weft.planner.search import open_costs
from weft.planner.simulate import FrontEnd, StepTimer, lengths, simulate
from weft.planner.step_costs import StepCosts, step_costs

COSTS = open_costs(find_gpu("h200"), None, "weft")


def priced(name: str, mapping: Mapping) -> StepCosts:
    return step_costs(rank_program(find_model(name), mapping), COSTS, "bfloat16")


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize(
    ("name", "mapping", "isl", "osl", "clients"),
    [
        ("Llama-3.1-8B", Mapping(), 1024, 256, 1),
        ("Llama-3.1-8B", Mapping(), 128, 128, 256),
        ("Llama-3.1-70B", Mapping(4), 3000, 300, 40),
        ("Qwen3-30B-A3B", Mapping(2, 1, 1, 2, 1), 500, 500, 64),
        ("Qwen3-30B-A3B", Mapping(1, 1, 4, 1, 4), 500, 250, 256),
    ],
)
def test_rate_and_time_per_token_are_the_simulation_s(
    name: str, mapping: Mapping, isl: int, osl: int, clients: int, mixed: bool
) -> None:
    costs = priced(name, mapping)
    budget = 8192 * mapping.dp
    told = serve(costs, isl, osl, clients, 4096, batching=Batching(float(budget), mixed))
    requests = lengths(isl, osl, 0.8, 1.2, 12 * clients)
    seen = simulate(
        StepTimer(costs, max(budget, 16384)), Limits(tokens=budget, sequences=4096, mixed=mixed), requests,
        concurrency=clients, front=FrontEnd(0.0, 0.0),
    )  # fmt: skip
    steady = np.argsort(seen.arrival, kind="stable")[clients:]
    assert float(told.tpot) == pytest.approx(float(seen.tpot[steady].mean()), rel=0.15)
    e2e = float(seen.e2e[steady].mean())
    assert float(told.e2e) == pytest.approx(e2e, rel=0.15)


@pytest.mark.parametrize(
    ("name", "isl", "osl", "clients"), [("Llama-3.1-8B", 2048, 128, 64), ("Llama-3.1-70B", 4096, 256, 32)]
)
def test_half_of_a_wave_of_prompts_is_in_the_time_per_token(name: str, isl: int, osl: int, clients: int) -> None:
    costs = priced(name, Mapping(4))
    requests = lengths(isl, osl, 1.0, 1.0, 10 * clients)
    limits = Limits(tokens=isl, sequences=4096, mixed=False)  # a prompt a step, one after another
    seen = simulate(StepTimer(costs), limits, requests, concurrency=clients, front=FrontEnd(0.0, 0.0))
    told, apart = (
        serve(costs, isl, osl, clients, 4096, batching=Batching(float(isl), False, waves)) for waves in (True, False)
    )
    tpot = float(seen.tpot.mean())
    assert float(told.tpot) == pytest.approx(tpot, rel=0.1)
    assert float(apart.tpot) > 1.15 * tpot
    assert float(told.ttft) == pytest.approx(float(seen.ttft.mean()), rel=0.15)
    assert float(told.e2e) == pytest.approx(float(seen.e2e.mean()), rel=0.1)


@pytest.mark.parametrize("mixed", [True, False])
def test_requests_of_one_token_are_as_many_as_prompts_that_can_be_read(mixed: bool) -> None:
    costs = priced("Llama-3.1-8B", Mapping())
    told = serve(costs, 20000, 1, 64, 4096, batching=Batching(8192.0, mixed))
    requests = lengths(20000, 1, 1.0, 1.0, 300)
    limits = Limits(sequences=4096, mixed=mixed)
    seen = simulate(StepTimer(costs), limits, requests, concurrency=64, front=FrontEnd(0.0, 0.0))
    assert float(told.rate) == pytest.approx(seen.output_rate, rel=0.2)


def test_prompts_in_one_step_cost_less_than_one_by_one() -> None:
    costs = priced("Qwen3-30B-A3B", Mapping())
    assert float(costs.prompts(6400.0, 100.0)) < 0.2 * 64 * float(costs.prompts(100.0, 100.0))


def test_prompts_beyond_a_step_s_budget_leave_fewer_decoding() -> None:
    costs = priced("Llama-3.1-8B", Mapping())
    wide = serve(costs, 4096, 64, 512, 4096, batching=Batching(65536.0))
    narrow = serve(costs, 4096, 64, 512, 4096, batching=Batching(2048.0))
    assert float(narrow.tpot) < float(wide.tpot)
    assert float(narrow.ttft) > float(wide.ttft)
    assert float(narrow.e2e) * float(narrow.rate) == pytest.approx(512 * 64)


def test_a_window_keeps_no_more_tokens_than_there_are() -> None:
    model, gpu, mapping = find_model("Llama-4-Scout").with_precision("fp8"), find_gpu("h200"), Mapping(4, 1, 1, 4, 1)
    program = rank_program(model, mapping, 1.0)
    room = memory(model, program, mapping, gpu, 8192)
    short = resident(room, program, mapping, 256.0)
    assert short == int(room.cache / (program.kv_bytes_per_token * 256.0))
    assert resident(room, program, mapping, 16384.0) > resident(
        room, program, mapping, 16384.0, CacheRule(whole_windows=True)
    )


def test_a_fraction_of_free_memory_is_not_one_of_all() -> None:
    model, gpu = find_model("Llama-3.1-70B").with_precision("fp8"), find_gpu("h200")
    program = rank_program(model, Mapping(), 1.0)
    every = memory(model, program, Mapping(), gpu, 8192, 0.9)
    free = memory(model, program, Mapping(), gpu, 8192, 0.9, CacheRule(of_free=True))
    assert free.cache == pytest.approx(every.cache + 0.1 * (every.weights + every.activations))


@pytest.mark.parametrize("length", [200_000, 400_000, 700_000, 3_000_000])
def test_long_prompts_take_no_less_than_the_peak_allows(length: int) -> None:
    operations = 32 * 32 * 128 * 2 * length**2  # layers, heads, their width; two products, of half a square each
    assert priced("llama-3.1-8b", Mapping()).attend(length, 0.0) >= operations / 989e12
