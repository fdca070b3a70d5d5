"""The barrier protocol of a warp-specialized kernel, run on the CPU in any order that a GPU may take.

Agents (a producer, consumers) are lists of events. A run interleaves them at random, lets copies land late, and finds
deadlocks, waits that a barrier's phase passed or had not reached, bytes that were not announced, slots that are
overwritten or read with nothing between, and generic writes that the asynchronous proxy may not see. Who comes before
whom is kept in clocks, so that a race is found whichever of the two comes first in a run.

    def producer():                                    def consumer():
        for turn in range(8):                              for turn in range(8):
            yield Wait(f"empty{turn % 2}", turn // 2 - 1)      yield Wait(f"full{turn % 2}", turn // 2)
            yield ExpectTx(f"full{turn % 2}", 1024)            yield AsyncRead(turn % 2)
            yield AsyncCopy(turn % 2, 1024, f"full{turn % 2}") yield Arrive(f"empty{turn % 2}")

    check(Protocol({"producer": producer(), "consumer": consumer()}, {"full0": 1, …}))
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

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

Clock: TypeAlias = dict[str, int]


@dataclass
class Protocol:
    """What agents do, and how many arrivals complete a phase of each mbarrier."""

    agents: Mapping[str, Iterable[Event]]
    barriers: Mapping[str, int]
    fence_reads: bool = False
    """Whether generic reads too need a fence before TMA overwrites what they read."""

    def __post_init__(self) -> None:
        self.agents = {name: list(events) for name, events in self.agents.items()}


def check(protocol: Protocol, runs: int = 100, seed: int = 0) -> None:
    """Run a protocol in many orders: at random, and with each agent, and TMA, ahead of or behind all others."""
    names = [*protocol.agents, TMA]
    for first in names:
        for sign in (1, -1):
            _Run(protocol, random.Random(seed), {first: sign}).all()
    for number in range(runs):
        chance = random.Random(seed + 1 + number)
        _Run(protocol, chance, {name: chance.choice((0, 0, 1, -1)) for name in names}).all()


TMA = "TMA"


@dataclass
class _Barrier:
    count: int
    phase: int = 0
    arrived: int = 0
    bytes: int = 0
    members: set[str] = field(default_factory=set[str])
    gathering: Clock = field(default_factory=dict[str, int])
    done: Clock = field(default_factory=dict[str, int])

    def complete(self) -> None:
        if self.arrived == self.count and self.bytes == 0:
            self.phase, self.arrived = self.phase + 1, 0
            self.done, self.gathering = _joined(self.done, self.gathering), {}
            self.members.clear()


@dataclass
class _Named:
    agents: int
    arrived: int = 0
    generation: int = 0
    gathering: Clock = field(default_factory=dict[str, int])
    done: Clock = field(default_factory=dict[str, int])


@dataclass
class _Access:
    """A touch of a slot: who, when by its clock, and when it was fenced."""

    who: str
    time: int
    generic: bool
    text: str
    fenced: int | None = None

    def before(self, clock: Clock) -> bool:
        return clock.get(self.who, 0) >= self.time

    def seen(self, clock: Clock) -> bool:
        """Whether the asynchronous proxy sees it."""
        return not self.generic or (self.fenced is not None and clock.get(self.who, 0) >= self.fenced)


@dataclass
class _Slot:
    write: _Access | None = None
    reads: list[_Access] = field(default_factory=list[_Access])


@dataclass
class _Flight:
    """A copy, or a read by TMA, that is under way."""

    name: str
    clock: Clock
    owner: str
    copy: AsyncCopy | None = None


def _joined(a: Clock, b: Clock) -> Clock:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in a.keys() | b.keys()}


class _Run:
    """One order of events."""

    def __init__(self, protocol: Protocol, chance: random.Random, preference: Mapping[str, int]) -> None:
        self.protocol = protocol
        self.chance = chance
        self.preference = preference
        self.events: dict[str, list[Event]] = {name: list(events) for name, events in protocol.agents.items()}
        self.at = dict.fromkeys(self.events, 0)
        self.clocks: dict[str, Clock] = {name: {name: 1} for name in self.events}
        self.barriers = {name: _Barrier(count) for name, count in protocol.barriers.items()}
        self.named: dict[int, _Named] = {}
        self.asleep: dict[str, tuple[int, int]] = {}
        self.slots: dict[Hashable, _Slot] = {}
        self.touched: dict[str, list[_Access]] = {name: [] for name in self.events}
        self.flights: list[_Flight] = []
        self.finished: dict[str, Clock] = {}
        self.stores: dict[str, list[str]] = {name: [] for name in self.events}
        self.started = 0

    def all(self) -> None:
        while True:
            able = [name for name in self.events if self._able(name)]
            able += [TMA] if self.flights else []
            if not able:
                break
            best = max(self.preference.get(name, 0) for name in able)
            name = self.chance.choice([name for name in able if self.preference.get(name, 0) == best])
            if name == TMA:
                self._land(self.flights.pop(self.chance.randrange(len(self.flights))))
            else:
                self._step(name)
        self._check_end()

    def _check_end(self) -> None:
        waiting = {name: self.events[name][at] for name, at in self.at.items() if at < len(self.events[name])}
        short = {name: b.bytes for name, b in self.barriers.items() if b.bytes}
        if short:
            text = ", ".join(f"{name} {abs(n)} bytes too {'few' if n > 0 else 'many'}" for name, n in short.items())
            raise TransactionError(f"barriers were announced other sums than came: {text}")
        if waiting:
            raise DeadlockError("; ".join(f"{name} is at {event}" for name, event in waiting.items()))
        if self.asleep:
            raise DeadlockError(f"{', '.join(self.asleep)} wait at a named barrier")
        left = [name for name, stores in self.stores.items() if stores]
        if left:
            raise RaceError(f"{', '.join(left)} end while the engine may still read their slots")

    # -- what an agent can do --------------------------------------------------------------------------------------

    def _able(self, name: str) -> bool:
        if name in self.asleep:
            number, generation = self.asleep[name]
            return self.named[number].generation > generation
        if self.at[name] == len(self.events[name]):
            return False
        match self.events[name][self.at[name]]:
            case Wait() as event:
                parity = event.phase & 1 if event.parity is None else event.parity
                return (self.barriers[event.barrier].phase & 1) != parity
            case WaitStores(left):
                waited = self.stores[name][: len(self.stores[name]) - left]
                return all(store in self.finished for store in waited)
            case _:
                return True

    def _step(self, name: str) -> None:
        if name in self.asleep:
            number, _ = self.asleep.pop(name)
            self.clocks[name] = _joined(self.clocks[name], self.named[number].done)
            return
        event = self.events[name][self.at[name]]
        self.at[name] += 1
        clock = self.clocks[name]
        match event:
            case Wait():
                self._pass(name, event)
            case Arrive(barrier, count):
                self._arrive(name, barrier, count)
            case ExpectTx(barrier, size):
                self.barriers[barrier].bytes += size
                self._arrive(name, barrier, 1)
            case AsyncCopy() | AsyncStore():
                self._start(name, event)
            case WaitStores(left):
                stores = self.stores[name]
                for store in stores[: len(stores) - left]:
                    self.clocks[name] = _joined(self.clocks[name], self.finished[store])
                self.stores[name] = stores[len(stores) - left :]
            case AsyncRead(slot):
                self._read(slot, _Access(name, clock[name], False, f"{name} at {event}"), clock)
            case Read(slot):
                self._read(slot, self._generic(name, event), clock)
            case Write(slot):
                self._write(slot, self._generic(name, event), clock)
            case ProxyFence():
                for access in self.touched[name]:
                    access.fenced = clock[name]
                self.touched[name].clear()
            case Sync():
                self._sync(name, event)
        self.clocks[name][name] += 1

    def _pass(self, name: str, event: Wait) -> None:
        barrier = self.barriers[event.barrier]
        if barrier.phase != event.phase + 1:
            raise PhaseError(
                f"{name} waits for phase {event.phase} of {event.barrier} and passes when {barrier.phase} are complete"
            )
        self.clocks[name] = _joined(self.clocks[name], barrier.done)

    def _arrive(self, name: str, number: str, count: int) -> None:
        barrier = self.barriers[number]
        if name in barrier.members or barrier.arrived + count > barrier.count:
            raise PhaseError(f"{name} arrives once too often in phase {barrier.phase} of {number}")
        barrier.members.add(name)
        barrier.arrived += count
        barrier.gathering = _joined(barrier.gathering, self.clocks[name])
        barrier.complete()

    def _sync(self, name: str, event: Sync) -> None:
        barrier = self.named.setdefault(event.number, _Named(event.agents))
        if barrier.agents != event.agents:
            raise PhaseError(f"{name} takes barrier {event.number} to be of {event.agents}, others of {barrier.agents}")
        barrier.arrived += 1
        barrier.gathering = _joined(barrier.gathering, self.clocks[name])
        if event.wait:
            self.asleep[name] = (event.number, barrier.generation)
        if barrier.arrived == barrier.agents:
            barrier.arrived, barrier.generation = 0, barrier.generation + 1
            barrier.done, barrier.gathering = barrier.gathering, {}

    # -- slots -----------------------------------------------------------------------------------------------------

    def _generic(self, name: str, event: Event) -> _Access:
        access = _Access(name, self.clocks[name][name], True, f"{name} at {event}")
        self.touched[name].append(access)
        return access

    def _start(self, name: str, event: AsyncCopy | AsyncStore) -> None:
        """The engine may touch the slot from now on, and has done so when the flight lands."""
        self.started += 1
        flight = f"{TMA} {self.started}"
        clock = {**self.clocks[name], flight: 1}
        access = _Access(flight, 1, False, f"{name} at {event}")
        if isinstance(event, AsyncCopy):
            self._write(event.slot, access, clock)
            self.flights.append(_Flight(flight, clock, name, event))
        else:
            self._read(event.slot, access, clock)
            self.stores[name].append(flight)
            self.flights.append(_Flight(flight, clock, name))

    def _land(self, flight: _Flight) -> None:
        if flight.copy is None:
            self.finished[flight.name] = flight.clock
            return
        barrier = self.barriers[flight.copy.barrier]
        barrier.bytes -= flight.copy.bytes
        barrier.gathering = _joined(barrier.gathering, flight.clock)
        barrier.complete()

    def _read(self, slot: Hashable, access: _Access, clock: Clock) -> None:
        held = self.slots.setdefault(slot, _Slot())
        if held.write is None:
            raise RaceError(f"{access.text} reads a slot that nobody filled")
        self._order(held.write, access, clock)
        held.reads.append(access)

    def _write(self, slot: Hashable, access: _Access, clock: Clock) -> None:
        held = self.slots.setdefault(slot, _Slot())
        for other in ([] if held.write is None else [held.write]) + held.reads:
            self._order(other, access, clock, is_read=other is not held.write)
        held.write, held.reads = access, []

    def _order(self, first: _Access, second: _Access, clock: Clock, *, is_read: bool = False) -> None:
        if not first.before(clock):
            raise RaceError(f"nothing is between {first.text} and {second.text}")
        if second.generic or (is_read and not self.protocol.fence_reads):
            return
        if not first.seen(clock):
            raise ProxyError(f"no fence is between {first.text} and {second.text}")
