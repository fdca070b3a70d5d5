"""Temporaries of a native program that share memory: none is written over while it is still to be read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from weft.backends.cpu.native_lifetimes import native_lifetimes
from weft.backends.cpu.native_program import arena_slots
from weft.ir.types import Tensor, f32
from weft.lower.steps import Buffer, IfStep, KernelStep, LoopStep, Place, Plan, SlicePlace, Step
from weft.ops.layouts import contiguous

TENSOR = Tensor(f32, (16,))
TURNS = 3


def kernel(*buffers: int) -> KernelStep:
    """A step that reads all buffers but the last, which it writes."""
    return KernelStep("kernel", buffers, (), 1, 1, True, "kernel")


def place(buffer: int) -> Place:
    return Place(buffer, TENSOR, contiguous(TENSOR))


def plan_of(steps: Sequence[Step], roles: Sequence[str]) -> Plan:
    buffers = tuple(Buffer(role, TENSOR, contiguous(TENSOR)) for role in roles)
    return Plan("program", buffers, tuple(steps), (), (), ())


def test_what_one_body_uses_alone_lives_inside_of_it() -> None:
    loop = LoopStep((kernel(0, 1), kernel(1, 2), kernel(2, 3), kernel(3, 0)), TURNS, -1, (), "loop")
    lives = native_lifetimes([kernel(0), loop, kernel(0, 4)])
    assert lives == {0: (0, 7), 1: (2, 3), 2: (3, 4), 3: (4, 5), 4: (7, 7)}
    assert len(arena_slots(plan_of([kernel(0), loop, kernel(0, 4)], ["temporary"] * 5))) == 3


def test_what_a_loop_captures_lives_as_long_as_it_does() -> None:
    """The capture is read by the first step alone, in every turn."""
    loop = LoopStep((kernel(0, 1), kernel(1, 2), kernel(2, 3)), TURNS, -1, (), "loop")
    assert native_lifetimes([kernel(0), loop])[0] == (0, 5)


def test_slices_and_conditions_live_as_long_as_their_loop() -> None:
    loop = LoopStep((kernel(2, 3), kernel(3, 1)), TURNS, 1, (SlicePlace(2, place(0), 1),), "loop")
    lives = native_lifetimes([kernel(0), kernel(1), loop])
    assert lives == {0: (0, 5), 1: (1, 5), 2: (2, 5), 3: (3, 4)}


def test_branches_share_memory() -> None:
    then, otherwise = ((kernel(n), kernel(n, n + 1), kernel(n + 1, n + 2), kernel(n + 2, 1)) for n in (2, 5))
    steps = [kernel(0), IfStep(0, then, otherwise, "if"), kernel(1, 8)]
    assert len(arena_slots(plan_of(steps, ["temporary"] * 9))) == 3


@dataclass
class Programs:
    """Random programs: every step reads what has been written before it, where it stands, and writes a buffer."""

    rng: random.Random
    roles: list[str] = field(default_factory=list[str])

    def new(self, role: str = "temporary") -> int:
        self.roles.append(role)
        return len(self.roles) - 1

    def steps(self, visible: Sequence[int], depth: int) -> tuple[list[Step], list[int]]:
        """Steps, and all that can be read behind them."""
        seen, made = list(visible), list[Step]()
        for _ in range(self.rng.randint(2, 6)):
            kind = self.rng.choice(["kernel", "kernel", "loop", "if"]) if depth and seen else "kernel"
            if kind == "loop":
                self._loop(seen, made, depth)
            elif kind == "if":
                condition, result = self.rng.choice(seen), self.new()
                then, otherwise = (self._ending(seen, [result], depth) for _ in range(2))
                made.append(IfStep(condition, then, otherwise, "if"))
                seen.append(result)
            else:
                made.append(kernel(*self._some(seen), self.new()))
                seen.append(len(self.roles) - 1)
        return made, seen

    def _loop(self, seen: list[int], made: list[Step], depth: int) -> None:
        states, stack = [self.new() for _ in range(self.rng.randint(1, 3))], self.new()
        made += [kernel(*self._some(seen), state) for state in states]
        made.append(kernel(stack))
        condition = states[0] if self.rng.random() < 0.5 else -1
        whole = self.rng.choice([*seen, stack])
        taken, given = self.new("slice"), self.new("slice")
        slices = (SlicePlace(taken, place(whole), 1), SlicePlace(given, place(stack), 1))
        body = self._ending([*(n for n in seen if self.rng.random() < 0.5), *states, taken], [*states, given], depth)
        made.append(LoopStep(body, TURNS, condition, slices, "loop"))
        seen += [*states, stack]

    def _ending(self, visible: Sequence[int], written: Sequence[int], depth: int) -> tuple[Step, ...]:
        """Steps of a region, whose last ones write what leaves it."""
        steps, seen = self.steps(visible, depth - 1)
        return (*steps, *(kernel(self.rng.choice(seen), number) for number in written))

    def _some(self, seen: Sequence[int]) -> list[int]:
        return self.rng.sample(seen, min(len(seen), self.rng.randint(0, 3)))


class Memory:
    """Runs a program and keeps which buffer each slot holds."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self.slot_of = {buffer: n for n, (buffers, _) in enumerate(arena_slots(plan)) for buffer in buffers}
        self.held: dict[int, int] = {}
        self.whole_of: dict[int, int] = {}
        self.rng = rng

    def _owner(self, buffer: int) -> int:
        while buffer in self.whole_of:
            buffer = self.whole_of[buffer]
        return buffer

    def read(self, buffer: int) -> None:
        owner = self._owner(buffer)
        assert self.held.get(self.slot_of[owner]) == owner, f"buffer {owner} is written over before it is read"

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case KernelStep():
                    for buffer in step.buffers[:-1]:
                        self.read(buffer)
                    written = step.buffers[-1]
                    if written in self.whole_of:  # a slice: what the other slices hold has to be there still
                        self.read(written)
                    owner = self._owner(written)
                    self.held[self.slot_of[owner]] = owner
                    for buffer in step.buffers:
                        self.read(buffer)
                case LoopStep():
                    self.whole_of |= {each.buffer: each.whole.buffer for each in step.slices}
                    for _ in range(TURNS):
                        if step.condition >= 0:
                            self.read(step.condition)
                        self.run(step.body)
                case IfStep():
                    self.read(step.condition)
                    self.run(step.then if self.rng.random() < 0.5 else step.otherwise)
                case _:
                    raise TypeError(step)


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_written_over_before_it_is_read(seed: int) -> None:
    programs = Programs(random.Random(seed))
    steps, _ = programs.steps((), 3)
    plan = plan_of(steps, programs.roles)
    for turn in range(3):
        Memory(plan, random.Random(turn)).run(plan.steps)
