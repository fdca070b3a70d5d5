"""Runs PTX of kernels whose blocks are in clusters: all blocks of one at once, each with a window of shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .ptx_machine import U64, Line, Memory
from .ptx_streams import StreamMachine

_CLUSTER_BARRIER = 1 << 20
_NUMBERS = 16
"""The barriers of a block."""


class ClusterMachine(StreamMachine):
    """The threads of a cluster, block after block."""

    def __init__(
        self, ptx: str, entry: str, threads: int, shared: int, memory: Memory, blocks: int, clusters: int, seed: int = 0
    ) -> None:
        self.threads, self.window = threads, -(-shared // 1024) * 1024
        super().__init__(ptx, entry, threads * blocks, self.window * blocks, memory, clusters, seed)

    @property
    def ranks(self) -> np.ndarray:
        return np.arange(self.count) // self.threads

    def raw(self, operand: str, type_: str) -> np.ndarray:
        match operand:
            case "%tid.x":
                return (np.arange(self.count) % self.threads).astype(U64)
            case "%cluster_ctarank":
                return self.ranks.astype(U64)
            case "%ctaid.x":
                return (self.block * (self.count // self.threads) + self.ranks).astype(U64)
            case "%clusterid.x":
                return np.full(self.count, self.block, U64)
            case "%nclusterid.x":
                return np.full(self.count, self.blocks, U64)
            case "shared":
                return (self.ranks * self.window).astype(U64)
            case _:
                return super().raw(operand, type_)

    def meet(self, line: Line, taken: np.ndarray) -> None:
        number = int(line.operands[0])
        wanted = int(line.operands[1]) if len(line.operands) > 1 else self.threads
        self.at_barrier = np.where(taken, self.ranks * _NUMBERS + number, self.at_barrier)
        for place in np.unique(self.at_barrier[taken]):
            if (self.at_barrier == place).sum() == wanted:
                self.at_barrier[self.at_barrier == place] = -1

    def step(self, line: Line, active: np.ndarray) -> None:
        if line.text.startswith("barrier.cluster.arrive"):
            return
        if line.text.startswith("barrier.cluster.wait"):
            self.at_barrier[active] = _CLUSTER_BARRIER
            if (self.at_barrier == _CLUSTER_BARRIER).all():
                self.at_barrier[:] = -1
        elif line.name == "mapa":
            address, rank = (self.raw(operand, "b32") for operand in line.operands[1:])
            self.write(line.operands[0], address % U64(self.window) + rank * U64(self.window), "b32", active)
        elif line.text.startswith("st.async"):
            self.send(line, active)
        else:
            super().step(line, active)

    def send(self, line: Line, active: np.ndarray) -> None:
        target, value, barrier = (self.raw(operand.strip("[]"), "b64") for operand in line.operands)
        size = int(line.parts[-1][1:]) // 8
        for thread in np.flatnonzero(active):
            place = int(target[thread])
            self.shared[place : place + size] = np.frombuffer(int(value[thread]).to_bytes(8, "little")[:size], np.uint8)
            reached = self.barriers[int(barrier[thread])]
            reached.bytes -= size
            reached.settle()


def run_clusters(
    ptx: str,
    entry: str,
    threads: int,
    shared: int,
    memory: Memory,
    words: list[Any],
    blocks: int,
    clusters: int,
    seed: int = 0,
) -> None:
    """Launch a kernel with a cluster of so many blocks for each program."""
    machine = ClusterMachine(ptx, entry, threads, shared, memory, blocks, clusters, seed)
    for cluster in range(clusters):
        machine.run(words, cluster)
