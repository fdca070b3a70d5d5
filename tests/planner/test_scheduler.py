"""The scheduler gives every token, keeps its limits, and the simulator keeps time with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model
from weft.planner.scheduler import Chunk, Limits, Request, State, Step, complete, schedule
from weft.planner.search import open_costs
from weft.planner.simulate import FrontEnd, StepTimer, lengths, simulate
from weft.planner.step_costs import StepCosts, step_costs

H200 = find_gpu("h200")


@pytest.fixture(scope="module")
def costs() -> StepCosts:
    return step_costs(rank_program(find_model("Llama-3.1-8B"), Mapping()), open_costs(H200, None, "weft"), "bfloat16")


def run(limits: Limits, requests: list[Request]) -> tuple[list[int], list[int], State]:
    """Run all to the end; the tokens of prompts and the decoding sequences of each step."""
    state = State(limits)
    step = schedule(state, requests)
    prompts: list[int] = []
    decoding: list[int] = []
    ended = 0
    for _ in range(100_000):
        if not step.decoding and not step.chunks:
            break
        prompts.append(sum(chunk.new for chunk in step.chunks))
        decoding += [step.decoding] * step.repeat
        _, finished = complete(state, step, step.repeat)
        ended += len(finished)
        step = schedule(state)
    assert ended == len(requests)
    return prompts, decoding, state


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("reserve", [True, False])
def test_every_prompt_and_token_is_run_once(mixed: bool, reserve: bool) -> None:
    requests = [Request(number, 300 + number, 20 + number) for number in range(40)]
    limits = Limits(tokens=1000, sequences=16, mixed=mixed, reserve=reserve)
    prompts, decoding, state = run(limits, requests)
    assert sum(prompts) == sum(each.prompt for each in requests)
    assert sum(decoding) == sum(each.output - 1 for each in requests)
    assert max(prompts) <= 1000
    assert max(decoding) <= 16
    assert state.used == pytest.approx(0) and state.context == pytest.approx(0)


def test_a_full_cache_preempts_the_youngest_and_all_finish() -> None:
    requests = [Request(number, 100, 200) for number in range(8)]
    _, _, state = run(Limits(cache=1200), requests)
    assert state.preemptions > 0
    assert state.used == pytest.approx(0)


def test_a_promised_cache_is_never_overrun() -> None:
    state = State(Limits(cache=1000, reserve=True))
    step = schedule(state, [Request(number, 100, 200) for number in range(8)])
    assert len(step.chunks) == 3
    assert state.used == 900


def test_cached_prefixes_are_not_run() -> None:
    step = schedule(State(Limits()), [Request(0, 1000, 10, cached=800), Request(1, 1000, 10, cached=1000)])
    assert [(chunk.new, chunk.prefix) for chunk in step.chunks] == [(200, 800), (1, 999)]


def test_drafts_take_fewer_steps() -> None:
    _, plain, _ = run(Limits(), [Request(0, 10, 101)])
    _, drafted, _ = run(Limits(per_tick=2.5), [Request(0, 10, 101)])
    assert sum(map(bool, plain)) == 100 and sum(map(bool, drafted)) == 40


def test_runs_of_steps_take_as_long_as_single_ones(costs: StepCosts) -> None:
    timer = StepTimer(costs)
    seen = simulate(timer, Limits(), [Request(0, 512, 400)], [0.0], front=FrontEnd(0, 0))
    single = float(costs.prompt(512)) + sum(float(costs.decode_step(1, 512 + index)) for index in range(399))
    assert seen.e2e[0] == pytest.approx(single, rel=0.01)
    assert seen.iterations == 400


def test_more_load_waits_longer(costs: StepCosts) -> None:
    timer = StepTimer(costs)
    seen = []
    for rate in (1.0, 10.0, 100.0):
        requests = lengths(1024, 128, 0.9, 1.1, 200)
        arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / rate, 200))
        seen.append(simulate(timer, Limits(), requests, arrivals.tolist()))
    ttft = [float(np.quantile(each.ttft, 0.9)) for each in seen]
    assert ttft[0] < ttft[1] < ttft[2]


def test_a_closed_loop_holds_its_clients(costs: StepCosts) -> None:
    seen = simulate(StepTimer(costs), Limits(), lengths(512, 128, 1, 1, 80), concurrency=8)
    assert len(seen.ttft) == 80
    assert seen.largest <= 8


def test_iterations_that_are_alike_are_priced_together(costs: StepCosts, monkeypatch: pytest.MonkeyPatch) -> None:
    priced, seconds = [0], StepTimer.seconds

    def counting(self: StepTimer, step: Step, ahead: float = 0.0) -> float:
        priced[0] += 1
        return seconds(self, step, ahead)

    monkeypatch.setattr(StepTimer, "seconds", counting)
    seen = simulate(StepTimer(costs), Limits(), lengths(1024, 1024, 0.8, 1.0, 300), concurrency=32)
    # What changes a step is a request that comes, goes or has a chunk to run: a few times each, whatever its length.
    assert priced[0] <= 6 * 300 < seen.iterations / 2


def test_held_prompts_run_together_after_some_steps_or_when_a_step_is_full() -> None:
    limits = Limits(held_steps=20, held_tokens=1000)
    state = State(limits)
    complete(state, schedule(state, [Request(0, 100, 500)]))  # nothing decodes: nothing is held
    step = schedule(state, [Request(1, 400, 10)])
    assert not step.chunks and step.repeat == 20
    complete(state, step, 15)
    step = schedule(state, [Request(2, 300, 10)])
    assert not step.chunks and step.repeat == 5
    complete(state, step, 5)
    step = schedule(state)
    assert [chunk.request.number for chunk in step.chunks] == [1, 2]
    complete(state, step)
    assert [chunk.new for chunk in schedule(state, [Request(3, 998, 10)]).chunks] == [998]  # with 3 that decode


def test_held_prompts_that_do_not_fit_into_a_step_do_not_fill_it() -> None:
    state = State(Limits(tokens=1000, held_steps=20, held_tokens=900, chunked=False))
    complete(state, schedule(state, [Request(0, 100, 500)]))
    assert not schedule(state, [Request(1, 600, 10), Request(2, 600, 10)]).chunks
    state = State(Limits(tokens=1000, held_steps=20, held_tokens=900))
    complete(state, schedule(state, [Request(0, 100, 500)]))
    assert schedule(state, [Request(1, 600, 10), Request(2, 600, 10)]).chunks


@pytest.mark.parametrize("chunked", [True, False])
def test_held_prompts_are_all_run(chunked: bool) -> None:
    requests = [Request(number, 300 + number, 20 + number) for number in range(40)]
    limits = Limits(tokens=1000, sequences=16, held_steps=7, held_tokens=900, chunked=chunked)
    prompts, decoding, _ = run(limits, requests)
    assert sum(prompts) == sum(each.prompt for each in requests)
    assert sum(decoding) == sum(each.output - 1 for each in requests)


def test_decoding_is_padded_to_the_next_captured_batch(costs: StepCosts) -> None:
    plain, captured = StepTimer(costs), StepTimer(costs, graphs=(8, 64, 256))
    assert captured.padded[:10] == [0, *[8] * 8, 64] and captured.padded[256:258] == [256, 257]
    step = Step(20, 20 * 100.0, [], 1)
    full = Step(64, 64 * 100.0, [], 1)
    assert plain.seconds(step) < captured.seconds(step) <= captured.seconds(full)
    assert captured.seconds(full) == plain.seconds(full)
    prompt = Step(20, 20 * 100.0, [Chunk(Request(0, 10, 5), 10, 0, True)], 1)
    assert captured.seconds(prompt) == plain.seconds(prompt)  # prompts run outside of graphs


def test_each_rank_of_attention_pads_its_own_sequences(costs: StepCosts) -> None:
    spread = StepTimer(replace(costs, share=0.25), graphs=(8, 16))
    assert [spread.padded[each] for each in (0, 1, 32, 33, 64, 65)] == [0, 32, 32, 64, 64, 65]
