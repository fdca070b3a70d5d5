"""Where everything lies: slices by what they are for, a bank for each tensor, an address for each tile of weights.

In each half the slices next to the middle hold constants, those at the edge weights, and between them are sixteen for
activations: four copies, one for each plane that may read, of four slices, in which the vectors of a tensor lie in
turn. So no two units ever ask a slice for two words, whatever a window looks like. A tensor has one bank of all
sixteen; what a layer reads and writes at the same time lies in different banks or halves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.isa import Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Layer, Model, Node, Operand, Placed, Stream

CONSTANTS = 3
"""Constants that an expression may have, each in four slices: its bytes."""


class CapacityError(UnsupportedError):
    """A model that does not fit: the message has demand and capacity."""


@dataclass
class MemoryMap:
    """The addresses of a program."""

    machine: StreamingMachine
    model: Model
    tile_at: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The first address of a tile in a half."""
    tile_end: list[int] = field(default_factory=lambda: [0, 0])
    constants: dict[tuple[bytes, int, int], int] = field(default_factory=dict[tuple[bytes, int, int], int])
    """The address of a constant vector, by its bytes, half and place in an expression."""
    constant_order: dict[tuple[bytes, int, int], int] = field(default_factory=dict[tuple[bytes, int, int], int])
    constant_end: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __post_init__(self) -> None:
        self.units = Units(self.machine)
        self.copies = self.machine.matrix.planes
        slices = self.machine.memory.slices_per_half
        self.first_weights = slices - self.machine.matrix.load_streams
        self.first_tensors = self.first_weights - self.copies * RESIDUES
        needed = 4 * CONSTANTS
        if self.first_tensors < needed:
            raise CapacityError(
                f"a half has {slices} slices, and {needed} for constants, {self.copies * RESIDUES} for tensors and "
                f"{self.machine.matrix.load_streams} for weights are needed",
                hint="raise memory.slices_per_half",
            )
        self.tile_tag = 0
        self.constant_tag = len(self.model.tiles) * self.machine.matrix.rows
        self.tensor_tag = self.constant_tag + (1 << 20)
        self._place_tensors()

    def weight_slice(self, half: int, stream: int) -> int:
        return self.units.memory(half, self.first_weights + stream)

    def tensor_slices(self, tensor: Placed, copy: int, residues: np.ndarray) -> np.ndarray:
        """The slices of vectors in a copy; of wide integers, a copy holds a byte."""
        first = self.units.memory(tensor.half, self.first_tensors)
        return first + copy * RESIDUES + residues

    def constant_slice(self, half: int, place: int, byte: int) -> int:
        return self.units.memory(half, 4 * place + byte)

    def tile(self, half: int, tile: int) -> int:
        """The address of a tile, which is put in this half if it is not there."""
        if (half, tile) not in self.tile_at:
            self.tile_at[half, tile] = self.tile_end[half]
            self.tile_end[half] += self.machine.load_cycles
            if self.tile_end[half] > self.machine.slice_words:
                raise CapacityError(
                    f"the weights need more than {self.machine.slice_words} words of each of "
                    f"{self.machine.matrix.load_streams} slices: tile {len(self.tile_at)} of {len(self.model.tiles)}",
                    hint="weights are resident: raise memory.bank_words, or split the model over chips",
                )
        return self.tile_at[half, tile]

    def constant(self, half: int, place: int, values: np.ndarray) -> tuple[int, int]:
        """The address and the tag of a constant vector."""
        key = (values.tobytes(), half, place)
        if key not in self.constants:
            end = self.constant_end.get((half, place), 0)
            self.constants[key] = end
            self.constant_end[half, place] = end + 1
            if end >= self.machine.slice_words:
                raise CapacityError(f"more than {self.machine.slice_words} constants", hint="raise memory.bank_words")
            self.constant_order[key] = len(self.constant_order)
        return self.constants[key], self.constant_tag + self.constant_order[key]

    def _place_tensors(self) -> None:
        ends = {(half, bank): 0 for half in (0, 1) for bank in range(self.machine.memory.banks)}
        placed: set[int] = set()
        tag = self.tensor_tag
        for tensor in self.model.tensors:
            tensor.tag = tag
            tag += tensor.blocks * tensor.pixels
        for tensor in self.model.tensors:
            apart = _kept_apart(tensor, self.model.layers)
            free = [
                region
                for region in ends
                if all(not _clash(region, other, wholly) for other, wholly in apart if other.number in placed)
            ]
            region = min(free, key=lambda each: ends[each], default=None)
            words = tensor.words
            if region is None or ends[region] + words > self.machine.memory.bank_words:
                demand = sum(each.words for each in self.model.tensors)
                capacity = len(ends) * self.machine.memory.bank_words
                left = self.machine.memory.bank_words - (ends[region] if region else 0)
                raise CapacityError(
                    f"{tensor.name} needs {words} words of a bank in {self.copies * RESIDUES} slices, and {left} are "
                    f"left; all tensors need {demand} of {capacity}",
                    hint="raise memory.bank_words",
                )
            tensor.half, tensor.bank = region
            tensor.base = tensor.bank * self.machine.memory.bank_words + ends[region]
            ends[region] += words
            placed.add(tensor.number)


def streams_of(node: Operand) -> list[Stream]:
    """The tensors that an expression reads."""
    if isinstance(node, Stream):
        return [node]
    return [each for operand in node.operands for each in streams_of(operand)] if isinstance(node, Node) else []


def _kept_apart(tensor: Placed, layers: list[Layer]) -> list[tuple[Placed, bool]]:
    """Tensors that are used at the same time; True where they are both read, and so must not share slices."""
    found: list[tuple[Placed, bool]] = []
    for layer in layers:
        read = {each.tensor.number: each.tensor for each in streams_of(layer.root)}
        if layer.source is not None:
            read[layer.source.number] = layer.source
        if tensor.number in read:
            found += [(other, True) for number, other in read.items() if number != tensor.number]
            found.append((layer.output, False))
        elif tensor is layer.output:
            found += [(other, False) for other in read.values()]
    return found


def _clash(region: tuple[int, int], other: Placed, wholly: bool) -> bool:
    return region[0] == other.half and (wholly or region[1] == other.bank)
