"""Runs PTX of products in roles on the CPU: all blocks of a cluster, with the tensor cores of Hopper and TMA
's boxes of tensors, those among them that it brings to several blocks at once.

Boxes land late, as other copies do. What is written goes to memory at once.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ptx_clusters import ClusterMachine
from .ptx_machine import BASE, U64, Line, MachineError, Memory
from .ptx_products import GROUP, ProductMachine

_LINE, _CHUNK = 128, 16
_RELEASE = re.compile(
    r"\{ \.reg \.pred p; \.reg \.b32 there; setp\.lt\.u32 p, (%\w+), (\d+); mapa\.shared::cluster\.u32 there, (%\w+), "
    r"%\w+; @p mbarrier\.arrive\.shared::cluster\.b64 _, \[there\]; \}"
)
_TENSOR = re.compile(r"cp\.async\.bulk\.tensor\.\dd\.(shared|global)")
_IGNORED = ("setmaxnreg", "prefetch", "fence")


@dataclass(frozen=True)
class Box:
    """A tensor as TMA is told of it; sizes are innermost first."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    width: int = 2
    """Bytes of an element."""

    def places(self, first: tuple[int, ...]) -> np.ndarray:
        """Where the elements of a box lie in memory, line by line; -1 outside of the tensor."""
        place, inside = np.zeros((), np.int64), np.ones((), bool)
        axes = zip(first, self.sizes, (1, *self.strides), self.box, strict=True)
        for start, size, stride, count in reversed(list(axes)):
            along = np.arange(start, start + count)
            place = place[..., None] + along * stride
            inside = inside[..., None] & (along >= 0) & (along < size)
        place = np.where(inside, self.address - BASE + self.width * place, -1)
        return place.reshape(-1, self.box[0])


def _swizzled(start: int, lines: int, width: int) -> np.ndarray:
    """Where the elements of lines of 128 bytes lie in shared memory."""
    places = start + np.arange(lines)[:, None] * _LINE + width * np.arange(_LINE // width)[None, :]
    return places ^ (places >> 7 & 7) << 4


class RolesMachine(ClusterMachine, ProductMachine):
    """The blocks of a cluster, or one block, whose warps have roles."""

    def __init__(self, ptx: str, entry: str, *rest: Any, boxes: list[Box], **named: Any) -> None:
        super().__init__(_RELEASE.sub(r"role.release \1, \2, \3;", ptx), entry, *rest, **named)
        self.boxes = boxes
        self.maps = {name for name, _ in self.params[len(self.params) - len(boxes) :]}

    def run(self, words: list[Any], block: int, limit: int = 2_000_000) -> None:
        self.arrived: Counter[tuple[int, int]] = Counter()
        super().run([*words, *range(len(self.boxes))], block, limit)

    def raw(self, operand: str, type_: str) -> np.ndarray:
        if operand in self.maps:
            return np.full(self.count, self.words[operand][0], U64)
        if operand == "%ctaid.x":
            return (self.block * (self.count // self.threads) + self.ranks).astype(U64)
        return super().raw(operand, type_)

    def go(self, line: Line, here: int, active: np.ndarray) -> None:
        if line.name == "wgmma":  # all of a warp group multiply together
            whole = (active.reshape(-1, GROUP).all(1)).repeat(GROUP)
            if not whole.any():
                return
            active = whole
        super().go(line, here, active)

    def groups_of(self, active: np.ndarray) -> list[int]:
        return [first for first in range(0, self.count, GROUP) if active[first]]

    def whole(self, address: int, thread: int) -> int:
        apart = int(self.ranks[thread]) * self.window
        return apart + (address - apart) % (1 << 18)

    def meet(self, line: Line, taken: np.ndarray) -> None:
        """A barrier of some of a block's threads; those that only arrive go on."""
        numbers = self.raw(line.operands[0], "b32").astype(np.int64)
        wanted = int(line.operands[1]) if len(line.operands) > 1 else self.threads
        for thread in np.flatnonzero(taken):
            place = int(self.ranks[thread]), int(numbers[thread])
            self.arrived[place] += 1
            if "arrive" not in line.parts:
                self.at_barrier[thread] = place[0] * 16 + place[1]
            if self.arrived[place] == wanted:
                self.arrived[place] = 0
                self.at_barrier[self.at_barrier == place[0] * 16 + place[1]] = -1

    def step(self, line: Line, active: np.ndarray) -> None:
        text = line.text
        if line.name in _IGNORED or text.startswith(("cp.async.bulk.commit", "cp.async.bulk.wait")):
            return
        if text.startswith("role.release"):
            self._release(line, active)
        elif (moved := _TENSOR.match(text)) is not None:
            (self._bring if moved.group(1) == "shared" else self._put)(line, active)
        elif line.name == "stmatrix":
            self._lay_down(line, active)
        else:
            super().step(line, active)

    def _release(self, line: Line, active: np.ndarray) -> None:
        lane, count, address = (self.raw(operand, "b32").astype(np.int64) for operand in line.operands)
        for thread in np.flatnonzero(active & (lane < count)):
            barrier = self.barriers[int(address[thread]) % self.window + int(lane[thread]) * self.window]
            barrier.arrived += 1
            barrier.settle()

    def _described(self, operand: str, thread: int) -> tuple[Box, tuple[int, ...]]:
        """The tensor and the coordinates of `[%rd1, {%r2, %r3}]`."""
        map_, *coordinates = re.findall(r"[%\w]+", operand)
        first = [int(self.raw(name, "b32").astype(np.uint32).view(np.int32)[thread]) for name in coordinates]
        return self.boxes[int(self.raw(map_, "b64")[thread])], tuple(first)

    def _bring(self, line: Line, active: np.ndarray) -> None:
        target, source, barrier, *mask = line.operands
        for thread in np.flatnonzero(active):
            box, first = self._described(source, thread)
            places = box.places(first)
            place, full = (int(self.raw(o[1:-1], "b32")[thread]) for o in (target, barrier))
            if place % (8 * _LINE):
                raise MachineError(f"a box at {place}, in the midst of lines that are mixed")
            blocks = [place // self.window]
            if "multicast::cluster" in line.text:
                chosen = int(self.raw(mask[0], "b16")[thread])
                blocks = [n for n in range(self.count // self.threads) if chosen >> n & 1]
            for block in blocks:
                apart = block * self.window
                there = _swizzled(place % self.window + apart, places.shape[0], box.width)
                self.flying.append((places, there, box.width, full % self.window + apart))

    def land(self) -> None:
        source, target, width, barrier = self.flying.pop(self.chance.randrange(len(self.flying)))
        for byte in range(width):
            self.shared[target + byte] = np.where(source < 0, 0, self.memory.bytes[np.maximum(source, 0) + byte])
        self.barriers[barrier].bytes -= width * source.size
        self.barriers[barrier].settle()

    def _put(self, line: Line, active: np.ndarray) -> None:
        target, source = line.operands
        for thread in np.flatnonzero(active):
            box, first = self._described(target, thread)
            places = box.places(first)
            there = _swizzled(int(self.raw(source[1:-1], "b32")[thread]), places.shape[0], box.width)
            inside = places >= 0
            for byte in range(box.width):
                self.memory.bytes[places[inside] + byte] = self.shared[there[inside] + byte]

    def _lay_down(self, line: Line, active: np.ndarray) -> None:
        target, registers = line.operands
        place = self.raw(target[1:-1], "b32").astype(np.int64)
        for first in range(0, self.count, 32):
            if not active[first]:
                continue
            for number, register in enumerate(registers):
                words = self.raw(register, "b32")[first : first + 32].astype(np.uint32)
                rows = place[first + 8 * number : first + 8 * number + 8]
                if (rows % _CHUNK).any():
                    raise MachineError(f"rows at {rows}")
                self.shared[rows[:, None] + np.arange(_CHUNK)] = words.view(np.uint8).reshape(8, _CHUNK)


def run_roles(
    ptx: str,
    entry: str,
    threads: int,
    shared: int,
    memory: Memory,
    words: list[Any],
    clusters: int,
    boxes: list[Box],
    cluster: int = 1,
    seed: int = 0,
) -> None:
    """Launch a kernel with so many clusters of so many blocks, which walk the programs."""
    machine = RolesMachine(ptx, entry, threads, shared, memory, cluster, clusters, seed, boxes=boxes)
    for number in range(clusters):
        machine.run(words, number)
