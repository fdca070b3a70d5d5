"""Where everything lies when single vectors are multiplied: all slices but a few have weights, each of them once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.spatial.isa import Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Model, Placed
from weft.spatial.program import Image, Port
from weft.spatial.scheduler.initial import lane_index
from weft.spatial.scheduler.memory_map import CapacityError

TENSOR_SLICES = 4
"""Next to the middle in the west half; tensors of 8 bits are in the first, those of 32 have a byte in each."""
CONSTANTS = 2
"""Constants that an expression may have, in four slices each, behind those of tensors."""


class StackMemory:
    """The addresses of a stack, and what memory holds at the start."""

    def __init__(self, machine: StreamingMachine, model: Model) -> None:
        self.machine, self.model, self.units = machine, model, Units(machine)
        self.tiles: list[dict[int, int]] = [{} for _ in range(machine.matrix.planes)]
        """For each plane the addresses of its tiles."""
        self.constants: dict[tuple[bytes, int], int] = {}
        self.constant_tag = len(model.tiles) * machine.matrix.rows
        self.placed = self.words = 0
        for tensor in model.tensors:
            self.place(tensor)

    def place(self, tensor: Placed) -> None:
        """Give a tensor words of its own."""
        bank = self.machine.memory.bank_words
        # A product mostly reads one bank and writes the other.
        tensor.bank = self.placed % 2
        tensor.base = self.words + tensor.bank * bank
        tensor.tag = self.constant_tag + (1 << 20) + self.words
        self.placed += 1
        self.words += tensor.blocks
        if self.words > bank:
            raise CapacityError(f"vectors need {self.words} words of a bank of {bank}", hint="raise memory.bank_words")

    def tile(self, plane: int, tile: int) -> int:
        """The address of a tile, which is put there if it is not."""
        machine, own = self.machine, self.tiles[plane]
        address = own.setdefault(tile, len(own) * machine.load_cycles)
        if address + machine.load_cycles > machine.slice_words:
            raise CapacityError(
                f"{len(own)} tiles of a plane need {len(own) * machine.load_cycles} words of each of "
                f"{machine.matrix.load_streams} slices, and there are {machine.slice_words}",
                hint="raise memory.bank_words, or split the model over chips",
            )
        return address

    def constant(self, values: np.ndarray, place: int) -> tuple[int, int]:
        """The address and the tag of a constant vector."""
        address = self.constants.setdefault((values.tobytes(), place), len(self.constants))
        if address >= self.machine.slice_words:
            raise CapacityError(f"more than {self.machine.slice_words} constants", hint="raise memory.bank_words")
        return address, self.constant_tag + address

    def weight_slice(self, plane: int) -> int:
        """The first of the slices that have the weights of a plane."""
        per_half, width = self.machine.matrix.planes // 2, self.machine.matrix.load_streams
        first = self.machine.memory.slices_per_half - per_half * width
        return self.units.memory(self.units.half_of_plane(plane), first + plane % per_half * width)

    def constant_slice(self, place: int, byte: int) -> int:
        """The slice of a byte of a constant."""
        return self.units.memory(0, TENSOR_SLICES + 4 * place + byte)

    def image(self) -> Image:
        """Weights, constants and constant tensors."""
        parts = list(self._held())
        return Image(*(np.concatenate([part[n] for part in parts]) for n in range(4)))

    def _held(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        machine, width, row = self.machine, self.machine.matrix.load_streams, np.arange(self.machine.matrix.rows)
        for plane, own in enumerate(self.tiles):
            for tile, address in own.items():
                data = self.model.tiles[tile].view(np.uint8)
                tags = tile * machine.matrix.rows + row
                yield self.weight_slice(plane) + row % width, address + row // width, tags, data
        for (values, place), address in self.constants.items():
            slices = np.array([self.constant_slice(place, byte) for byte in range(4)])
            tags = np.full(4, self.constant_tag + address)
            yield slices, np.full(4, address), tags, np.frombuffer(values, np.uint8).reshape(-1, 4).T
        for tensor in self.model.constants:
            assert tensor.data is not None, "a constant has elements"
            port = self.port(tensor)
            flat = np.concatenate([tensor.data.reshape(-1), np.zeros(1)]).astype(np.int8)
            yield port.slices, port.addresses, port.tags, flat[port.index].view(np.uint8)

    def port(self, tensor: Placed) -> Port:
        """Where an argument or a result lies."""
        blocks, wide = np.arange(tensor.blocks), tensor.dtype.itemsize
        index = lane_index(tensor, np.zeros(1, np.int64), np.arange(tensor.blocks * self.machine.width))
        vectors, bytes_ = np.repeat(blocks, wide), np.tile(np.arange(wide), len(blocks))
        return Port(
            tensor.name,
            tensor.shape,
            tensor.dtype,
            index.reshape(tensor.blocks, -1),
            tensor.fill,
            self.units.memory(0, 0) + bytes_,
            tensor.base + vectors,
            vectors,
            bytes_,
            tensor.tag + vectors,
        )
