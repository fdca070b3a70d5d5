"""Memory that knows who touched it: the shared and the global memory of the thread-block simulator.

Two threads that touch a place without a barrier between them race, unless both only read. It does not matter which of
them comes first in the simulation: no order holds between them on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import WeftError

NOBODY, SEVERAL = -1, -2


class SimulationError(WeftError):
    """A kernel for a GPU does something that has no defined result there."""


class RaceError(SimulationError):
    """Threads, or programs, touch the same memory with nothing between them."""


class SharedMemoryError(SimulationError):
    """An access outside of a block's shared memory, or one that is not aligned."""


class AccessLog:
    """Who read and wrote each place since the last barrier; `agents` are the numbers of threads or of programs."""

    def __init__(self, size: int) -> None:
        self._epoch = 1
        self._writers, self._readers = (np.full(size, NOBODY, np.int64) for _ in range(2))
        self._write_ops, self._read_ops = (np.zeros(size, np.int64) for _ in range(2))
        self._written, self._read = (np.zeros(size, np.int64) for _ in range(2))

    def barrier(self) -> None:
        """What was done before is done for all."""
        self._epoch += 1

    def read(self, op: int, agents: np.ndarray, places: np.ndarray) -> tuple[int, int] | None:
        """Note that agents read places; gives a place at which one races and the op it races with."""
        writers = np.where(self._written[places] == self._epoch, self._writers[places], NOBODY)
        race = _first(places, (writers != NOBODY) & (writers != agents), self._write_ops)
        readers = np.where(self._read[places] == self._epoch, self._readers[places], NOBODY)
        self._readers[places] = agents
        several = (self._readers[places] != agents) | ((readers != NOBODY) & (readers != agents))
        self._readers[places[several]] = SEVERAL
        self._read[places], self._read_ops[places] = self._epoch, op
        return race

    def write(
        self, op: int, agents: np.ndarray, places: np.ndarray, *, any_order: bool = False
    ) -> tuple[int, int] | None:
        """Note that agents write places; gives a place at which one races and the op it races with.

        With `any_order` the op itself may write a place several times, and any of them is right.
        """
        for stamps, others, ops in (
            (self._written, self._writers, self._write_ops),
            (self._read, self._readers, self._read_ops),
        ):
            before = np.where(stamps[places] == self._epoch, others[places], NOBODY)
            wrong = (before != NOBODY) & (before != agents)
            race = _first(places, wrong & (ops[places] != op) if any_order else wrong, ops)
            if race is not None:
                return race
        self._writers[places] = agents
        self._written[places], self._write_ops[places] = self._epoch, op
        return None if any_order else _first(places, self._writers[places] != agents, self._write_ops)


def _first(places: np.ndarray, wrong: np.ndarray, ops: np.ndarray) -> tuple[int, int] | None:
    if not wrong.any():
        return None
    place = int(places[int(np.argmax(wrong))])
    return place, int(ops[place])


class SharedMemory:
    """The bytes that the threads of a block share, of all blocks of a cluster. What nobody wrote is poison."""

    def __init__(self, size: int, names: Sequence[str], threads: int, blocks: int = 1) -> None:
        self.size = size
        self.names = names
        self.threads = threads
        self._bytes = np.full(size * blocks, 0xAB, np.uint8)
        self._defined = np.zeros(size * blocks, bool)
        self._log, self._between_blocks = AccessLog(size * blocks), AccessLog(size * blocks)

    def barrier(self, *, of_cluster: bool = False) -> None:
        self._log.barrier()
        if of_cluster:
            self._between_blocks.barrier()

    def write(self, op: int, threads: np.ndarray, starts: np.ndarray, values: np.ndarray, defined: np.ndarray) -> None:
        """Each thread writes a value to the bytes from its start on; all are flat arrays of one length."""
        places = self._places(op, starts, values.dtype.itemsize, threads // self.threads)
        agents, flat = np.broadcast_to(threads[:, None], places.shape).reshape(-1), places.reshape(-1)
        race = self._log.write(op, agents, flat) or self._between_blocks.write(op, agents // self.threads, flat)
        if race is not None:
            raise RaceError(self._message(op, "writes", race))
        self._bytes[places] = np.ascontiguousarray(values).view(np.uint8).reshape(places.shape)
        self._defined[places] = defined[:, None]

    def read(
        self, op: int, threads: np.ndarray, starts: np.ndarray, dtype: np.dtype, blocks: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The values from the starts on, and which are defined; in a thread's own block, or in those that are named."""
        places = self._places(op, starts, dtype.itemsize, threads // self.threads if blocks is None else blocks)
        agents, flat = np.broadcast_to(threads[:, None], places.shape).reshape(-1), places.reshape(-1)
        race = self._log.read(op, agents, flat) or self._between_blocks.read(op, agents // self.threads, flat)
        if race is not None:
            raise RaceError(self._message(op, "reads", race))
        return np.ascontiguousarray(self._bytes[places]).view(dtype).reshape(-1), np.asarray(
            self._defined[places].all(1)
        )

    def _places(self, op: int, starts: np.ndarray, size: int, blocks: np.ndarray) -> np.ndarray:
        if starts.size and (starts.min() < 0 or starts.max() + size > self.size):
            raise SharedMemoryError(
                f"{self.names[op]} uses bytes {starts.min()} to {starts.max() + size} of {self.size} of shared memory"
            )
        if (starts % size).any():
            raise SharedMemoryError(
                f"{self.names[op]} uses {size} bytes of shared memory at {starts[starts % size != 0][0]}"
            )
        return (starts + blocks * self.size)[:, None] + np.arange(size)

    def _message(self, op: int, does: str, race: tuple[int, int]) -> str:
        place, other = race[0] % self.size, race[1]
        return (
            f"{self.names[op]} {does} byte {place} of shared memory that another thread touches in {self.names[other]}"
        )


class GlobalMemory:
    """A buffer: its elements, and who touched them among the threads of a block and among the blocks of the grid.

    `program` tells blocks apart, also those of a cluster.
    """

    def __init__(self, array: np.ndarray, names: Sequence[str], *, serial: bool) -> None:
        self.array = array
        self.names = names
        self._threads = AccessLog(array.size)
        self._programs = None if serial else AccessLog(array.size)

    def barrier(self) -> None:
        self._threads.barrier()

    def read(self, op: int, program: np.ndarray, threads: np.ndarray, places: np.ndarray) -> np.ndarray:
        self._check(op, "reads", self._threads.read(op, threads, places), "thread")
        if self._programs is not None:
            self._check(op, "reads", self._programs.read(op, program, places), "program")
        return self.array[places]

    def write(
        self,
        op: int,
        program: np.ndarray,
        threads: np.ndarray,
        places: np.ndarray,
        values: np.ndarray,
        *,
        any_order: bool = False,
    ) -> None:
        self._check(op, "writes", self._threads.write(op, threads, places, any_order=any_order), "thread")
        if self._programs is not None:
            self._check(op, "writes", self._programs.write(op, program, places, any_order=any_order), "program")
        self.array[places] = values

    def _check(self, op: int, does: str, race: tuple[int, int] | None, who: str) -> None:
        if race is not None:
            place, other = race
            raise RaceError(
                f"{self.names[op]} {does} element {place} that another {who} touches in {self.names[other]}"
            )
