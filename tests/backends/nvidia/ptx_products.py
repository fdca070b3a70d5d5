"""Runs PTX of products on the CPU that take operands from shared memory: the machine of `ptx_machine`, with copies of
threads that land when they are waited for, and the tensor cores of Hopper.

A descriptor says where an operand lies: its first byte, how far apart its parts are, and that the pieces of 16 bytes of
lines of 128 are mixed by the number of the line.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from .ptx_machine import BASE, U64, Line, Machine, MachineError, Memory

GROUP, _ROWS, _DEPTH = 128, 64, 16
_NAMES = ("lo", "da", "db", "p")
"""Registers of a piece of PTX by itself."""


class ProductMachine(Machine):
    """One block."""

    def run(self, words: list[Any], block: int, limit: int = 200_000) -> None:
        self.begun: list[tuple[np.ndarray, np.ndarray, int]] = []
        self.groups: list[list[tuple[np.ndarray, np.ndarray, int]]] = []
        super().run(words, block, limit)

    def raw(self, operand: str, type_: str) -> np.ndarray:
        return self.registers[operand] if operand in _NAMES else super().raw(operand, type_)

    def step(self, line: Line, active: np.ndarray) -> None:
        match line.name, line.parts:
            case "cp", ["async", "commit_group"]:
                self._all(active)
                self.groups.append(self.begun)
                self.begun = []
            case "cp", ["async", "wait_group"]:
                self._all(active)
                for group in self.groups[: max(0, len(self.groups) - int(line.operands[0]))]:
                    for place, content, size in group:
                        self.shared[place[:, None] + np.arange(size)] = content
                del self.groups[: max(0, len(self.groups) - int(line.operands[0]))]
            case "cp", ["async", *_]:
                self._copy(line, active)
            case "wgmma", ["mma_async", *_]:
                self._multiply(line, active)
            case "wgmma", _:
                pass
            case _:
                super().step(line, active)

    def _all(self, active: np.ndarray) -> None:
        if not active.all():
            raise MachineError("not all threads are there")

    def _copy(self, line: Line, active: np.ndarray) -> None:
        target, source, size, taken = line.operands
        bytes_ = int(size)
        threads = np.flatnonzero(active)
        places = self.raw(target[1:-1], "b64").view(np.int64)[active]
        sources = self.raw(source[1:-1], "b64").view(np.int64)[active] - BASE
        counts = self.raw(taken, "b32").view(np.int64)[active]
        if (places < 0).any() or (places + bytes_ > self.shared_size).any() or (places % bytes_).any():
            raise MachineError(f"shared memory at {places[:4]} of {self.shared_size}")
        self.races["shared"].touch(places, bytes_, threads, True, line.text)
        content = np.zeros((len(places), bytes_), np.uint8)
        read = counts > 0
        self.memory.check(sources[read], bytes_)
        content[read] = self.memory.bytes[sources[read][:, None] + np.arange(bytes_)]
        self.shared[places[:, None] + np.arange(bytes_)] = 0xCD  # until it has landed
        self.begun.append((places, content, bytes_))

    def groups_of(self, active: np.ndarray) -> range | list[int]:
        """The first threads of the warp groups that multiply."""
        self._all(active)
        return range(0, self.count, GROUP)

    def _multiply(self, line: Line, active: np.ndarray) -> None:
        found = re.fullmatch(r"m64n(\d+)k16", line.parts[3])
        if found is None or line.parts[4:] not in (["f32", "f16", "f16"], ["f32", "bf16", "bf16"]):
            raise MachineError("no such product")
        columns, dtype = int(found.group(1)), line.parts[-1]
        registers, left, right, flag = line.operands[:4]
        turned = [int(operand) for operand in line.operands[6:]]
        keeps = self.raw(flag, "pred").astype(bool)
        for first in self.groups_of(active):
            if isinstance(left, list):
                a = self._fragments(left, dtype, first)
            else:
                a = self._operand(int(self.registers[left][first]), _ROWS, turned[0], dtype, first)
            b = self._operand(int(self.registers[right][first]), columns, turned[-1], dtype, first)
            product = a @ b.T
            lanes = np.arange(GROUP)
            for number, register in enumerate(registers):
                row = lanes // 32 * 16 + lanes % 32 // 4 + 8 * (number // 2 % 2)
                column = number // 4 * 8 + lanes % 4 * 2 + number % 2
                old = self.raw(register, "b32").copy()
                total = old[first : first + GROUP].astype(np.uint32).view(np.float32)
                total = np.where(keeps[first : first + GROUP], total, 0) + product[row, column].astype(np.float32)
                old[first : first + GROUP] = total.astype(np.float32).view(np.uint32).astype(U64)
                self.registers[register] = old

    def _fragments(self, registers: list[str], dtype: str, first: int) -> np.ndarray:
        """The left operand where threads hold it: pairs of elements along K, eight rows and eight columns apart."""
        a, lanes = np.zeros((_ROWS, _DEPTH)), np.arange(GROUP)
        for number, register in enumerate(registers):
            words = self.raw(register, "b32")[first : first + GROUP].astype(np.uint32)
            row = lanes // 32 * 16 + lanes % 32 // 4 + 8 * (number % 2)
            column = lanes % 4 * 2 + 8 * (number // 2)
            for half in (0, 1):
                a[row, column + half] = _numbers((words >> (16 * half)).astype(np.uint16), dtype)
        return a

    def whole(self, address: int, thread: int) -> int:
        """The address of which a descriptor holds the lower 18 bits."""
        return address

    def _operand(self, descriptor: int, count: int, turned: int, dtype: str, thread: int) -> np.ndarray:
        """The elements of `count` rows, each of 16 along K."""
        start, apart, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
        start = self.whole(start, thread)
        if descriptor >> 62 != 1:
            raise MachineError("lines that are not mixed by 128 bytes")
        outer, k = np.arange(count)[:, None], np.arange(_DEPTH)[None, :]
        if turned:
            places = start + outer // 64 * apart + k // 8 * stride + k % 8 * 128 + outer % 64 * 2
        else:
            places = start + outer // 8 * stride + outer % 8 * 128 + k * 2
        places = places ^ (places >> 7 & 7) << 4
        self.races["shared"].touch(places.reshape(-1), 2, np.full(places.size, thread), False, "wgmma")
        return _numbers(self.shared[places[..., None] + np.arange(2)].copy().view(np.uint16)[..., 0], dtype)


def _numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(np.float16).astype(np.float64)


def run_products(
    ptx: str, entry: str, threads: int, shared: int, memory: Memory, words: list[Any], blocks: int
) -> None:
    """Launch a kernel."""
    machine = ProductMachine(ptx, entry, threads, shared, memory)
    for block in range(blocks):
        machine.run(words, block)
