"""What a layer reads from memory: tensors and constants, so that each vector is where it is taken in its cycle."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.isa import EAST, WEST, Opcode
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.jobs import aligned_lines
from weft.spatial.mapping.layers import RESIDUES, Layer, Placed, Stream
from weft.spatial.scheduler.emit import Emitter
from weft.spatial.scheduler.expression import (
    NARROW_STREAMS,
    TENSOR_STREAMS,
    chains_of,
    constants_of,
    in_one_half,
    padding_constants,
    streams_of,
)
from weft.spatial.scheduler.memory_map import CONSTANTS, MemoryMap
from weft.spatial.scheduler.mesh import Chains
from weft.spatial.scheduler.turns import Turns, Worker

CONSTANT_STREAMS = (8, 12, 24)
"""The first of the four streams that bring each constant to the middle."""


class CrowdedError(UnsupportedError):
    """A slice would have to be read twice in a cycle: rows follow each other too fast."""


@dataclass
class LayerReads:
    """The part of a layer's pipeline that reads."""

    machine: StreamingMachine
    memory: MemoryMap
    layer: Layer
    pace: int = 1
    """Cycles from a row to the next where nothing is multiplied."""
    emitter: Emitter = field(default_factory=Emitter)

    def __post_init__(self) -> None:
        self.chains: Chains = chains_of(self.machine, self.layer)
        self.constants = list({id(each): each for each in constants_of(self.layer.root)}.values())
        if len(self.constants) > CONSTANTS:
            raise UnsupportedError(
                f"an expression has {len(self.constants)} constants", hint=f"at most {CONSTANTS} fit"
            )
        self.turns = Turns(self.machine, self.layer, len(self.chains.copies))
        self.taken: dict[tuple[int, int], list[np.ndarray]] = {}
        """For a half and a place of a constant, when it is taken, and which it is."""
        self.spare = self.machine.matrix.planes // 2 if in_one_half(self.layer) else 0
        self.asked = np.zeros(0, np.int64)

    def _read_stream(
        self, worker: Worker, rows: np.ndarray, operand: Stream, times: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Read a tensor of the expression."""
        tensors, output, tensor = streams_of(self.layer.root), self.layer.output, operand.tensor
        number = next(n for n, each in enumerate(tensors) if each is operand)
        copy = worker.place % len(self.chains.copies)
        wide = [each.tensor.dtype.itemsize > 1 for each in tensors]
        if wide[number]:
            return self._read_wide(worker, rows, operand, sum(wide[:number]) * len(self.chains.copies) + copy, times)
        number -= sum(wide[:number])
        numbers = self._tensor_streams()
        if (len(tensors) - sum(wide)) * len(self.chains.copies) > len(numbers):
            raise UnsupportedError(f"a window of {len(tensors)} pixels is too large", hint="pool in two steps")
        stream = self._stream(inward(tensor.half), numbers[number * len(self.chains.copies) + copy])
        line, column = np.divmod(worker.job.pixels[rows], output.width)
        aligned = aligned_lines(operand, output)
        assert aligned is not None, "packings are chosen so that operands are aligned"
        places = tensor.position(np.array(aligned)[line], column * operand.stride[1] + operand.offset[1])
        block = worker.job.blocks[rows] % tensor.blocks
        copies = self._free_copies(tensor, tensor.residue(block, places), times)
        self._read_tensor(tensor, copies, block, places, times, 0, stream)
        return stream, tensor.tags(block, places)

    def _read_wide(
        self, worker: Worker, rows: np.ndarray, operand: Stream, number: int, times: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Read a tensor of 32 bits of the expression: a byte of each copy."""
        tensor = operand.tensor
        taken = {CONSTANT_STREAMS[place] for place in range(len(self.constants))}
        free = [first for first in (0, 4, *CONSTANT_STREAMS) if first not in taken]
        stream = self._stream(inward(tensor.half), free[number])
        places = tensor.position(np.zeros(1, np.int64), worker.job.pixels[rows])
        block = worker.job.blocks[rows] % tensor.blocks
        residues = tensor.residue(block, places)
        tags = tensor.tags(block, places)
        for byte in range(4):
            slices = self.memory.tensor_slices(tensor, byte, residues)
            cycles = times - np.abs(self._positions(slices)) - self.machine.latency.read
            address = tensor.address(block, places)
            self._emit(Opcode.READ, slices, cycles, result=stream + byte, address=address, tag=tags, detail=byte)
        return stream, tags

    def _free_copies(self, tensor: Placed, residues: np.ndarray, times: np.ndarray) -> np.ndarray:
        """A copy for each vector, in which its slice is not read already: a window asks for several in a cycle."""
        copies = np.full(len(residues), self.spare, np.int64)
        most = self.memory.copies_of(tensor)
        for _ in range(most):
            slices = self.memory.tensor_slices(tensor, 0, residues) + copies * RESIDUES
            keys = (slices.astype(np.int64) << 32) + times - np.abs(self._positions(slices))
            taken = np.isin(keys, self.asked)
            if not taken.any():
                self.asked = np.concatenate([self.asked, keys])
                return copies
            copies[taken] += 1
            copies = np.minimum(copies, most - 1)
        raise CrowdedError(f"a window reads a slice of {tensor.name} too often in a cycle", hint="pool in two steps")

    def _tensor_streams(self) -> tuple[int, ...]:
        """Streams that bring tensors to the vector unit."""
        if self.layer.source is not None:
            return TENSOR_STREAMS
        if any(each.tensor.dtype.itemsize > 1 for each in streams_of(self.layer.root)):
            return NARROW_STREAMS
        free = (*NARROW_STREAMS, *range(8))
        return free if self.constants else (*free, *range(8, 16), *range(24, 28))

    def _read_tensor(
        self,
        tensor: Placed,
        copies: np.ndarray | int,
        block: np.ndarray | int,
        places: np.ndarray,
        times: np.ndarray,
        to: int,
        stream: int,
    ) -> None:
        """Read vectors so that they are at a position in given cycles."""
        slices = self.memory.tensor_slices(tensor, 0, tensor.residue(block, places)) + np.asarray(copies) * RESIDUES
        cycles = times - np.abs(self._positions(slices) - to) - self.machine.latency.read
        address, tags = tensor.address(block, places), tensor.tags(block, places)
        self._emit(Opcode.READ, slices, cycles, result=stream, address=address, tag=tags)

    def _read_constants(self) -> None:
        """Constants are read once for all that take them in a cycle."""
        for (half, place), parts in self.taken.items():
            times, kinds = np.concatenate(parts, axis=1)
            pairs = {kind: self._constant(half, place, kind) for kind in np.unique(kinds).tolist()}
            columns = (np.array([pairs[kind][part] for kind in kinds.tolist()]) for part in (0, 1))
            times, addresses, tags = np.unique(np.stack([times, *columns]), axis=1)
            stream = self._stream(inward(half), CONSTANT_STREAMS[place])
            for byte in range(4):
                slice_ = self.memory.constant_slice(half, place, byte)
                way = abs(self.memory.units.position(slice_))
                cycles = times - way - self.machine.latency.read
                self._emit(Opcode.READ, slice_, cycles, result=stream + byte, address=addresses, tag=tags)

    def _kinds(self, worker: Worker, rows: np.ndarray) -> np.ndarray:
        """Which constants rows take: by their block, and by the slots of their line that are padding."""
        lines = worker.job.pixels[rows] // self.layer.output.width
        return self.turns.variant_of[lines] * self.layer.output.blocks + worker.job.blocks[rows]

    def _constant(self, half: int, place: int, kind: int) -> tuple[int, int]:
        """The address and tag of a constant; in slots of padding it is what makes the result the padding's value."""
        lanes, output, constant = self.machine.width, self.layer.output, self.constants[place]
        variant, block = divmod(kind, output.blocks)
        if constant.values.size == 1 and len(output.shape) < 4:
            return self.memory.constant(half, place, np.full(lanes, constant.values[0], np.float32))
        part = output.arranged(constant.values)[block * lanes : (block + 1) * lanes].astype(np.float32)
        slots = np.tile(part, (output.packing.slots, 1))
        if output.border and self.turns.variants[variant]:
            forced = padding_constants(self.layer.root, output.fill)
            assert forced is not None, "a tensor whose padding cannot be computed is not packed"
            if id(constant) in forced:
                slots[list(self.turns.variants[variant])] = forced[id(constant)]
        flat = slots.reshape(-1)
        return self.memory.constant(half, place, np.pad(flat, (0, lanes - len(flat))))

    def _positions(self, slices: np.ndarray) -> np.ndarray:
        return self._place_of[slices]

    @cached_property
    def _place_of(self) -> np.ndarray:
        return np.array([self.memory.units.position(queue) for queue in range(self.machine.slices)])

    def _stream(self, direction: int, number: int) -> int:
        return direction * self.machine.streams.per_direction + number

    def _emit(
        self, opcode: Opcode, queue: np.ndarray | int, cycle: np.ndarray | int, **columns: np.ndarray | int
    ) -> None:
        self.emitter.emit(opcode, queue, cycle, origin=self.layer.origin, **columns)


def outward(half: int) -> int:
    """The direction from the middle to the edge of a half."""
    return EAST if half else WEST


def inward(half: int) -> int:
    """The direction from the edge of a half to the middle."""
    return WEST if half else EAST
