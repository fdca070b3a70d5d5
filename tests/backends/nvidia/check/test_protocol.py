"""Barrier protocols of warp-specialized kernels: right ones pass in every order, and each fault is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from weft.backends.nvidia.check.protocol import Protocol, check
from weft.backends.nvidia.check.protocol_events import (
    Arrive,
    AsyncCopy,
    AsyncRead,
    AsyncStore,
    DeadlockError,
    Event,
    ExpectTx,
    PhaseError,
    ProxyError,
    ProxyFence,
    Read,
    Sync,
    TransactionError,
    Wait,
    WaitStores,
    Write,
)
from weft.backends.nvidia.check.simulator_memory import RaceError

BYTES = 1024


def producer(stages: int, turns: int) -> list[Event]:
    events: list[Event] = []
    for turn in range(turns):
        stage, phase = turn % stages, turn // stages
        events += [
            Wait(f"empty{stage}", phase - 1),
            ExpectTx(f"full{stage}", 2 * BYTES),
            AsyncCopy(("a", stage), BYTES, f"full{stage}"),
            AsyncCopy(("b", stage), BYTES, f"full{stage}"),
        ]
    return events


def consumer(stages: int, turns: int) -> list[Event]:
    events: list[Event] = []
    for turn in range(turns):
        stage, phase = turn % stages, turn // stages
        events += [
            Wait(f"full{stage}", phase),
            AsyncRead(("a", stage)),
            AsyncRead(("b", stage)),
            Arrive(f"empty{stage}"),
        ]
    return events


def ring(stages: int, turns: int, consumers: int) -> Protocol:
    agents = {"producer": producer(stages, turns)}
    agents |= {f"consumer{n}": consumer(stages, turns) for n in range(consumers)}
    barriers = {f"full{s}": 1 for s in range(stages)} | {f"empty{s}": consumers for s in range(stages)}
    return Protocol(agents, barriers)


def changed(protocol: Protocol, agent: str, change: Callable[[list[Event]], Iterable[Event]]) -> Protocol:
    agents = {name: list(events) for name, events in protocol.agents.items()}
    return replace(protocol, agents={**agents, agent: list(change(agents[agent]))})


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize(("stages", "turns"), [(1, 5), (2, 2), (2, 7), (3, 8), (4, 3)])
def test_a_ring_of_stages(stages: int, turns: int, consumers: int) -> None:
    check(ring(stages, turns, consumers), runs=30)


def test_a_stage_that_is_never_released() -> None:
    wrong = changed(ring(2, 6, 2), "consumer1", lambda e: [x for x in e if x != Arrive("empty0")])
    with pytest.raises(DeadlockError, match="producer is at Wait"):
        check(wrong)


def test_a_stage_that_is_released_before_it_is_read() -> None:
    def early(events: list[Event]) -> list[Event]:
        for at, event in enumerate(events):
            if isinstance(event, Arrive):
                events[at - 1], events[at] = event, events[at - 1]
        return events

    with pytest.raises(RaceError, match="nothing is between"):
        check(changed(ring(2, 6, 2), "consumer0", early))


def test_a_producer_that_does_not_wait() -> None:
    wrong = changed(ring(2, 6, 1), "producer", lambda e: [x for x in e if not isinstance(x, Wait)])
    with pytest.raises((RaceError, PhaseError)):
        check(wrong)


def test_a_consumer_that_does_not_wait() -> None:
    wrong = changed(ring(2, 6, 2), "consumer0", lambda e: [x for x in e if x != Wait("full1", 1)])
    with pytest.raises((RaceError, PhaseError)):
        check(wrong)


def test_parities_that_start_wrong() -> None:
    """A producer that waits with the consumers' parity waits for ever; one that starts twice ahead passes too early."""

    def turned(events: list[Event]) -> list[Event]:
        return [replace(x, parity=1 - (x.phase & 1)) if isinstance(x, Wait) else x for x in events]

    with pytest.raises(DeadlockError):
        check(changed(ring(2, 6, 1), "producer", turned))
    with pytest.raises(PhaseError, match="passes when 0 are complete"):
        check(changed(ring(2, 6, 1), "consumer0", turned))


@pytest.mark.parametrize(("announced", "word"), [(BYTES, "many"), (3 * BYTES, "few")])
def test_bytes_that_were_not_announced(announced: int, word: str) -> None:
    def other(events: list[Event]) -> list[Event]:
        return [replace(x, bytes=announced) if isinstance(x, ExpectTx) else x for x in events]

    with pytest.raises(TransactionError, match=word):  # nobody reads here, so nobody is too early
        check(Protocol({"producer": other(producer(2, 2))}, {f"{n}{s}": 1 for n in ("full", "empty") for s in (0, 1)}))
    with pytest.raises((TransactionError, RaceError)):
        check(changed(ring(2, 2, 1), "producer", other))


def test_an_arrival_too_many() -> None:
    wrong = changed(
        ring(2, 6, 2), "consumer0", lambda e: [y for x in e for y in ([x, x] if x == Arrive("empty0") else [x])]
    )
    with pytest.raises((PhaseError, RaceError)):
        check(wrong)


def test_a_consumer_with_fewer_turns() -> None:
    wrong = changed(ring(2, 6, 1), "consumer0", lambda e: e[:8])
    with pytest.raises(DeadlockError):
        check(wrong)


# -- generic writes, the asynchronous proxy and named barriers ---------------------------------------------------------


def epilogue(turns: int) -> list[Event]:
    """Write results to one of two slots, hand them to TMA, go on with the other."""
    events: list[Event] = []
    for turn in range(turns):
        slot = turn % 2
        events += [WaitStores(1), Write(slot), ProxyFence(), AsyncStore(slot)]
    return [*events, WaitStores(0)]


def test_results_through_two_slots() -> None:
    check(Protocol({"warp": epilogue(5)}, {}))


def test_a_fence_that_is_left_out() -> None:
    with pytest.raises(ProxyError, match="no fence is between"):
        check(Protocol({"warp": [x for x in epilogue(3) if not isinstance(x, ProxyFence)]}, {}))


def test_a_slot_that_the_engine_still_reads() -> None:
    with pytest.raises(RaceError, match="nothing is between"):
        check(Protocol({"warp": [x for x in epilogue(3) if x != WaitStores(1)]}, {}))
    with pytest.raises(RaceError, match="end while"):
        check(Protocol({"warp": epilogue(3)[:-1]}, {}))


def handed(fence: list[Event], after: list[Event]) -> Protocol:
    """One agent writes, another multiplies from it."""
    return Protocol({"a": [Write(0), *fence, Sync(1, 2), *after], "b": [Sync(1, 2), AsyncRead(0)]}, {})


def test_the_fence_comes_before_the_barrier() -> None:
    check(handed([ProxyFence()], []))
    for wrong in (handed([], []), handed([], [ProxyFence()])):
        with pytest.raises(ProxyError):
            check(wrong)


def test_reads_before_an_overwrite_where_they_need_a_fence() -> None:
    barriers = {"full": 1, "empty": 1}
    produced = [
        ExpectTx("full", 8),
        AsyncCopy(0, 8, "full"),
        Wait("empty", 0),
        ExpectTx("full", 8),
        AsyncCopy(0, 8, "full"),
    ]
    consumed: list[Event] = [Wait("full", 0), Read(0), Arrive("empty"), Wait("full", 1)]
    check(Protocol({"p": produced, "c": consumed}, barriers))
    with pytest.raises(ProxyError):
        check(Protocol({"p": produced, "c": consumed}, barriers, fence_reads=True))
    consumed.insert(2, ProxyFence())
    check(Protocol({"p": produced, "c": consumed}, barriers, fence_reads=True))


def test_named_barriers() -> None:
    """Two groups take turns: each arrives at the other's barrier when it is done."""
    turns: dict[str, list[Event]] = {"a": [], "b": []}
    turns["b"].append(Sync(1, 2, wait=False))
    for _ in range(3):
        turns["a"] += [Sync(1, 2), Write(0), Sync(2, 2, wait=False)]
        turns["b"] += [Sync(2, 2), Write(0), Sync(1, 2, wait=False)]
    turns["a"].append(Sync(1, 2))
    check(Protocol(turns, {}))
    with pytest.raises(DeadlockError):
        check(Protocol({**turns, "b": turns["b"][1:]}, {}))
    with pytest.raises(RaceError):
        check(Protocol({"a": [Write(0)], "b": [Write(0)]}, {}))
    with pytest.raises(PhaseError, match="others of 2"):
        check(Protocol({"a": [Sync(1, 2)], "b": [Sync(1, 3)]}, {}))


def test_a_slot_that_nobody_filled() -> None:
    with pytest.raises(RaceError, match="nobody filled"):
        check(Protocol({"a": [Read(0)]}, {}))
