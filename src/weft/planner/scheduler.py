"""Continuous batching as a pure module: (state, events) → step. It has no clock, no input and no randomness.

An engine, or the simulator, hands over what arrived, gets the step to run, runs it, and says that it is done. Decoding
sequences all advance together, so they are kept as the tick at which each ends: a step costs what changes, not what is
running, and says how many times it may be repeated before anything can change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

BLOCK = 16
"""Tokens of a block of the cache: what each running sequence has to have room for before another is admitted."""


@dataclass(slots=True)
class Request:
    """What a client asks for: `prompt` tokens, of which `cached` are found in the prefix cache, and `output` tokens."""

    number: int
    prompt: int
    output: int
    cached: int = 0
    produced: int = 0
    """Tokens that were given before a preemption."""


@dataclass(frozen=True)
class Limits:
    """What an engine allows itself."""

    tokens: int = 8192
    """Tokens of a step: the budget that prompts are cut into chunks by."""
    sequences: int = 1024
    cache: int = 1 << 40
    """Tokens that the cache holds."""
    mixed: bool = True
    """Chunks of prompts go along with decoding; without it, steps with prompts hold decoding up."""
    reserve: bool = False
    """Admit only what can run to its end; without it, the youngest is preempted when the cache is full."""
    chunked: bool = True
    ahead: bool = False
    """The next step is prepared while one runs: what arrives meanwhile is in the step after that."""
    per_tick: float = 1.0
    """Tokens that a sequence advances by in a step: more than one with speculative decoding."""
    held_steps: int = 0
    """Steps of decoding that prompts are held back for so that more of them run together: 0 for none."""
    held_tokens: int = 0
    """Tokens, prompts' and decoding's, from which on prompts are held back no longer."""


@dataclass(slots=True)
class Chunk:
    """A part of a prompt: `new` tokens after `prefix` tokens that are there already."""

    request: Request
    new: int
    prefix: int
    last: bool


@dataclass(slots=True)
class Step:
    """What to run next: chunks of prompts, and one tick of `decoding` sequences with `context` tokens in all."""

    decoding: int
    context: float
    chunks: list[Chunk]
    repeat: int
    """How many times the same decoding may run before anything can change; 1 with chunks."""
    held: bool = False
    """Whether there are prompts that wait for others."""


@dataclass(slots=True)
class State:
    """Everything that a scheduler knows between steps."""

    limits: Limits
    waiting: deque[Request] = field(default_factory=deque[Request])
    filling: deque[list[int | Request]] = field(default_factory=deque[list[int | Request]])
    """Prompts that are partly through: [request, tokens done]."""
    ends: list[tuple[int, int, int, Request]] = field(default_factory=list[tuple[int, int, int, Request]])
    """Decoding sequences: (tick of the end, number, tick of the start, request), a heap."""
    tick: int = 0
    context: float = 0.0
    used: float = 0.0
    """Tokens of the cache that are taken, or promised with `reserve`."""
    preemptions: int = 0
    held: int = 0
    """Steps for which prompts have been held back."""


def ticks(limits: Limits, tokens: int) -> int:
    """Steps that so many tokens take."""
    return max(-int(-tokens // limits.per_tick), 0) if limits.per_tick != 1.0 else max(tokens, 0)


def schedule(state: State, arrivals: Iterable[Request] = ()) -> Step:
    """Take in what arrived and say what to run next; an empty step says that there is nothing to do."""
    state.waiting.extend(arrivals)
    limits = state.limits
    if not limits.reserve:
        _preempt(state)
    decoding = len(state.ends)
    chunks: list[Chunk] = []
    held = bool(state.waiting) and decoding > 0 and not state.filling and _held(state)
    if (state.waiting or state.filling) and not held:
        budget = limits.tokens - (decoding if limits.mixed else 0)
        chunks = _chunks(state, budget)
        state.held = 0
    if chunks and not limits.mixed:
        return Step(0, 0.0, chunks, 1)
    if chunks:
        return Step(decoding, state.context, chunks, 1)
    if not decoding:
        return Step(0, 0.0, [], 0)
    repeat = state.ends[0][0] - state.tick
    if held:
        repeat = min(repeat, limits.held_steps - state.held)
    if not limits.reserve:
        room = int((limits.cache - state.used) // (decoding * limits.per_tick))
        repeat = max(1, min(repeat, room))
    return Step(decoding, state.context, [], repeat, held)


def _held(state: State) -> bool:
    """Whether prompts wait for more of them: until a step would be full enough, or they have waited long enough."""
    limits = state.limits
    if state.held >= limits.held_steps:
        return False
    tokens = len(state.ends)
    for request in state.waiting:
        new = max(request.prompt + request.produced - request.cached, 1)
        if not limits.chunked and tokens + new > limits.tokens:
            break
        tokens += new
        if tokens >= limits.held_tokens:
            return False
    return True


def _chunks(state: State, budget: int) -> list[Chunk]:
    limits = state.limits
    chunks: list[Chunk] = []
    for entry in state.filling:
        if budget <= 0:
            return chunks
        request, done = entry
        assert isinstance(request, Request) and isinstance(done, int)
        new = min(request.prompt + request.produced - done, budget)
        chunks.append(Chunk(request, new, done, done + new == request.prompt + request.produced))
        budget -= new
    waiting = state.waiting
    while waiting and budget > 0 and len(state.ends) + len(state.filling) < limits.sequences:
        request = waiting[0]
        whole = request.prompt + request.produced
        new = max(whole - request.cached, 1)
        if new > budget and chunks and not limits.chunked:
            break
        need = request.prompt + request.output if limits.reserve else whole
        running = len(state.ends) + len(state.filling)
        margin = 0 if limits.reserve else (running + 1) * BLOCK
        if running and state.used + need + margin > limits.cache:
            break
        waiting.popleft()
        state.used += need
        state.filling.append([request, whole - new])
        taken = min(new, budget) if limits.chunked else new
        chunks.append(Chunk(request, taken, whole - new, taken == new))
        budget -= taken
    return chunks


def _preempt(state: State) -> None:
    """Give back the cache of the youngest sequences until the next tick has room; they begin anew, first in line."""
    limits = state.limits
    while len(state.ends) > 1 and state.used + len(state.ends) * limits.per_tick > limits.cache:
        youngest = max(range(len(state.ends)), key=lambda index: state.ends[index][2])
        _, _, start, request = state.ends.pop(youngest)
        state.ends.sort()
        given = int((state.tick - start) * limits.per_tick)
        held = request.prompt + request.produced + given
        state.context -= held
        state.used -= held
        request.produced += given
        state.waiting.appendleft(request)
        state.preemptions += 1


def complete(state: State, step: Step, times: int = 1) -> tuple[list[Request], list[Request]]:
    """A step was run so many times: which requests gave their first token, and which are at their end."""
    limits = state.limits
    first: list[Request] = []
    finished: list[Request] = []
    if step.held:
        state.held += times
    if step.decoding:
        advanced = step.decoding * times * limits.per_tick
        state.tick += times
        state.context += advanced
        if not limits.reserve:
            state.used += advanced
        ends = state.ends
        while ends and ends[0][0] <= state.tick:
            end, _, start, request = heappop(ends)
            held = request.prompt + request.produced + (end - start) * limits.per_tick
            state.context -= held
            state.used -= request.prompt + request.output if limits.reserve else held
            finished.append(request)
    for chunk in step.chunks:
        request = chunk.request
        entry = state.filling[0]
        if entry[0] is not request:
            entry = next(each for each in state.filling if each[0] is request)
        if not chunk.last:
            entry[1] = chunk.prefix + chunk.new
            continue
        state.filling.remove(entry)
        if request.produced == 0:
            first.append(request)
        left = ticks(limits, request.output - 1 - request.produced)
        if left <= 0:
            finished.append(request)
            state.used -= request.prompt + request.output if limits.reserve else request.prompt + request.produced
            continue
        state.context += request.prompt + request.produced
        heappush(state.ends, (state.tick + left, request.number, state.tick, request))
    return first, finished
