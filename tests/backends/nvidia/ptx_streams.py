"""Runs PTX of kernels with roles on the CPU: the machine of `ptx_machine`, with mbarriers and TMA.

Copies land late, some after others that were begun later, and what has not landed is poison. Threads that wait for a
barrier let others go on. Who may overwrite what is left to the protocol's checker.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ptx_machine import BASE, U64, Line, Machine, MachineError, Memory

_WAIT = re.compile(
    r"\{ \.reg \.pred p; W: mbarrier\.try_wait\.parity\.shared::cta\.b64 p, (\[%\w+\]), (\S+); "
    r"@p bra D; bra W; D: \}"
)
_ELECT = re.compile(r"\{ \.reg \.pred p; elect\.sync _\|p, -1; selp\.u32 (%\w+), 1, 0, p; \}")
_ARRIVE = re.compile(r"\{ \.reg \.pred p; elect\.sync _\|p, -1; @p (mbarrier\.arrive\.\S+ _, \[%\w+\]); \}")


@dataclass
class _Barrier:
    count: int
    phase: int = 0
    arrived: int = 0
    bytes: int = 0

    def settle(self) -> None:
        if self.arrived > self.count:
            raise MachineError("more arrivals than a barrier counts")
        if self.arrived == self.count and self.bytes == 0:
            self.phase, self.arrived = self.phase + 1, 0


class _NoRaces:
    def touch(self, *_: Any) -> None:
        pass


class StreamMachine(Machine):
    """One block of threads in roles."""

    def __init__(
        self, ptx: str, entry: str, threads: int, shared: int, memory: Memory, blocks: int, seed: int = 0
    ) -> None:
        text = _WAIT.sub(r"role.wait \1, \2;", ptx)
        text = _ARRIVE.sub(r"role.\1;", _ELECT.sub(r"role.elect \1;", text))
        super().__init__(text, entry, threads, shared, memory)
        self.blocks, self.chance = blocks, random.Random(seed)

    def run(self, words: list[Any], block: int, limit: int = 2_000_000) -> None:
        self.registers = {}
        self.words = {name: (word, bits) for (name, bits), word in zip(self.params, words, strict=True)}
        self.block = block
        self.races = {"shared": _NoRaces(), "global": _NoRaces()}  # type: ignore[dict-item]
        self.shared[:] = 0xFF  # NaN
        self.barriers: dict[int, _Barrier] = {}
        self.flying: list[tuple[int, int, int, int]] = []
        self.place = np.zeros(self.count, np.int64)
        self.done = np.zeros(self.count, bool)
        self.at_barrier = np.full(self.count, -1)
        for _ in range(limit):
            if self.done.all():
                if self.flying:
                    raise MachineError("a block ends before its copies have landed")
                return
            if self.flying and self.chance.random() < 0.02:
                self.land()
            if not self.turn():
                if not self.flying:
                    raise MachineError("threads wait for each other")
                self.land()
        raise MachineError("the program does not end")

    def turn(self) -> bool:
        """One line of those that can go on, taken by chance among the places where some are."""
        for here in self.chance.sample(places := sorted({*self.place[self.free()].tolist()}), len(places)):
            active = self.free() & (self.place == here)
            if here >= len(self.lines):
                self.done |= active
                return True
            line = self.lines[here]
            if line.name == "role" and line.parts[0] == "wait":
                passed = self.passed(line, active)
                if not passed.any():
                    continue
                self.place[passed] = here + 1
                return True
            if line.name == "shfl":  # lanes wait for those that have gone another way
                active &= (active | self.done).reshape(-1, 32).all(1).repeat(32)
                if not active.any():
                    continue
            self.go(line, here, active)
            return True
        return False

    def free(self) -> np.ndarray:
        return ~self.done & (self.at_barrier < 0)

    def passed(self, line: Line, active: np.ndarray) -> np.ndarray:
        where = self.raw(line.operands[0][1:-1], "b64")
        parity = self.raw(line.operands[1], "b32")
        there = [active[t] and self.barriers[int(where[t])].phase % 2 != int(parity[t]) & 1 for t in range(self.count)]
        return np.array(there)

    def go(self, line: Line, here: int, active: np.ndarray) -> None:
        # Lanes of a warp that have gone different ways meet again only where all of them come by.
        self.place[active] = here + 1
        taken = active
        if line.guard is not None:
            flag = self.registers[line.guard].astype(bool)
            taken = active & (~flag if line.negated else flag)
            if not taken.any():
                return
        if line.name == "bra":
            self.place[taken] = self.labels[line.operands[0]]
        elif line.name in ("ret", "exit"):
            self.done |= taken
        elif line.name == "bar" and line.parts[0] == "warp":
            pass
        elif line.name == "bar":
            self.meet(line, taken)
        else:
            try:
                self.step(line, taken)
            except MachineError as error:
                raise MachineError(f"{error}; at `{line.text}`") from error

    def meet(self, line: Line, taken: np.ndarray) -> None:
        number = int(line.operands[0])
        wanted = int(line.operands[1]) if len(line.operands) > 1 else self.count
        self.at_barrier[taken] = number
        if (self.at_barrier == number).sum() == wanted:
            self.at_barrier[self.at_barrier == number] = -1

    def land(self) -> None:
        source, target, size, barrier = self.flying.pop(self.chance.randrange(len(self.flying)))
        self.shared[target : target + size] = self.memory.bytes[source : source + size]
        self.barriers[barrier].bytes -= size
        self.barriers[barrier].settle()

    def raw(self, operand: str, type_: str) -> np.ndarray:
        if operand == "%nctaid.x":
            return np.full(self.count, self.blocks, U64)
        return super().raw(operand, type_)

    def step(self, line: Line, active: np.ndarray) -> None:
        words = [line.name, *line.parts]
        if line.name == "createpolicy":
            self.write(line.operands[0], np.zeros(self.count, U64), "b64", active)
        elif words[:2] == ["role", "elect"]:
            self.write(line.operands[0], _first_lanes(active).astype(U64), "b32", active)
        elif "mbarrier" in words[:2]:
            self.arrive(line, _first_lanes(active) if words[0] == "role" else active)
        elif line.text.startswith("cp.async.bulk.shared::cluster.global"):
            self.copy(line, active)
        else:
            super().step(line, active)

    def arrive(self, line: Line, active: np.ndarray) -> None:
        where = self.raw(next(o for o in line.operands if o.startswith("["))[1:-1], "b64")
        for thread in np.flatnonzero(active):
            address = int(where[thread])
            if "init" in line.parts:
                self.barriers[address] = _Barrier(int(line.operands[1]))
                continue
            barrier = self.barriers[address]
            barrier.bytes += int(self.raw(line.operands[2], "b32")[thread]) if "expect_tx" in line.parts else 0
            barrier.arrived += 1
            barrier.settle()

    def copy(self, line: Line, active: np.ndarray) -> None:
        target, source, size, barrier = (self.raw(o.strip("[]"), "b64").view(np.int64) for o in line.operands[:4])
        for thread in np.flatnonzero(active):
            count = int(size[thread])
            self.memory.check(source[thread : thread + 1] - BASE, count, 16, reads=True)
            if target[thread] % 16 or target[thread] + count > self.shared_size:
                raise MachineError(f"a copy to {target[thread]} of {self.shared_size} bytes")
            flight = (int(source[thread]) - BASE, int(target[thread]), count, int(barrier[thread]))
            self.flying.append(flight)


def _first_lanes(active: np.ndarray) -> np.ndarray:
    """The first of each warp's threads that are there."""
    chosen = np.zeros_like(active)
    for warp in range(0, len(active), 32):
        lanes = np.flatnonzero(active[warp : warp + 32])
        if len(lanes):
            chosen[warp + lanes[0]] = True
    return chosen


def run_streams(
    ptx: str, entry: str, threads: int, shared: int, memory: Memory, words: list[Any], blocks: int, seed: int = 0
) -> None:
    """Launch a kernel whose blocks walk the programs."""
    machine = StreamMachine(ptx, entry, threads, shared, memory, blocks, seed)
    for block in range(blocks):
        machine.run(words, block)
