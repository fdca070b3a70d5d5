"""Where everything lies: slices by what they are for, a bank for each tensor, an address for each tile of weights.

In each half the slices at the edge hold weights and those before them constants. Next to the middle, from where results
come and which activations cross on their way to the other half, are sixteen for activations: four copies, one for each
plane that may read, of four slices, in which the vectors of a tensor lie in turn. So no two units ever ask a slice for
two words, whatever a window looks like. A tensor has one bank of all sixteen, or both banks of two copies; what a layer
reads and writes at the same time lies in different banks or slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from weft.spatial.isa import Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Model, Placed
from weft.spatial.scheduler.bank_halves import NO_HALVES, BankHalves
from weft.spatial.scheduler.tensor_places import CapacityError, TensorPlaces
from weft.spatial.scheduler.weight_places import TilePlace, WeightPlaces

CONSTANTS = 3
"""Constants that an expression may have, each in four slices: its bytes."""
_MOST_BYTES = 4
"""Of an integer in memory."""
_MOST_PLANES = 2
"""Of a half: so many have streams of their own for rows and for sums."""
STREAMS = 32
"""Of a direction: what each of them carries is settled for so many."""
_SPARE = 64
"""Words that are kept free for constants which later layers bring."""


@dataclass
class MemoryMap:
    """The addresses of a program."""

    machine: StreamingMachine
    model: Model
    halves: BankHalves = NO_HALVES
    """Which tensors have both banks of some slices."""
    wide_at: dict[tuple[int, int, int], tuple[int, int]] = field(
        default_factory=dict[tuple[int, int, int], tuple[int, int]]
    )
    """Tiles that both planes of a half load at once: by half, lane and tile, the first address and the rows."""
    wide_from: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The lowest address that such tiles have in a half and lane: they are put from the last address down."""
    constants: dict[tuple[bytes, int, int], int] = field(default_factory=dict[tuple[bytes, int, int], int])
    """The address of a constant vector, by its bytes, half and place in an expression."""
    constant_order: dict[tuple[bytes, int, int], int] = field(default_factory=dict[tuple[bytes, int, int], int])
    constant_end: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    held: dict[int, list[tuple[int, int]]] = field(default_factory=dict[int, list[tuple[int, int]]])
    """For each half the addresses of tensors, from the last down."""

    def __post_init__(self) -> None:
        self.units = Units(self.machine)
        per_half = self.machine.matrix.planes // 2
        self.copies = max(self.machine.matrix.planes, _MOST_BYTES)
        """Copies of a tensor of 8 bits: one for each plane, and slices enough for the bytes of wide integers."""
        slices = self.machine.memory.slices_per_half
        self.first_weights = slices - self.machine.matrix.load_streams
        self.first_wide = slices - per_half * self.machine.matrix.load_streams
        self.first_constants = self.copies * RESIDUES
        if per_half > _MOST_PLANES:
            raise CapacityError(
                f"a half has {per_half} planes, and streams for the rows and sums of {_MOST_PLANES}",
                hint=f"matrix.planes is at most {2 * _MOST_PLANES}",
            )
        if self.machine.streams.per_direction < STREAMS:
            raise CapacityError(
                f"a direction has {self.machine.streams.per_direction} streams, and {STREAMS} are needed for weights, "
                "rows, sums and constants",
                hint="raise streams.per_direction",
            )
        needed = 4 * CONSTANTS
        if self.first_weights - self.first_constants < needed:
            raise CapacityError(
                f"a half has {slices} slices, and {needed} for constants, {self.copies * RESIDUES} for tensors and "
                f"{self.machine.matrix.load_streams} for weights are needed",
                hint="raise memory.slices_per_half",
            )
        self._lanes = range(min(0, per_half - 2), max(1, per_half - 1))
        """The lanes of slices for weights in which constants may be."""
        self.tile_rows = [self._held_rows(tile) for tile in self.model.tiles]
        """Rows of each tile that are loaded: those up to the last that is not zero."""
        scarce = sum(self.tile_rows) > self.machine.slice_words * self.machine.matrix.load_streams
        self.weights = [WeightPlaces(self.machine, self.first_constants, scarce) for _ in (0, 1)]
        self.tile_tag = 0
        self.constant_tag = len(self.model.tiles) * self.machine.matrix.rows
        self.tensor_tag = self.constant_tag + (1 << 20)
        TensorPlaces(self.machine, self.model, self.copies, self.halves.late).place(self.tensor_tag)
        self.keep_clear(each for each in self.model.tensors if each.within is None)

    def _held_rows(self, tile: np.ndarray) -> int:
        width, held = self.machine.matrix.load_streams, np.flatnonzero(tile.any(axis=1))
        return min(self.machine.matrix.rows, (int(held.max(initial=0)) // width + 1) * width)

    def wide_slice(self, half: int, lane: int, stream: int) -> int:
        """Where the plane of a half with this number loads from, when all its planes load at once."""
        return self.units.memory(half, self.first_wide + lane * self.machine.matrix.load_streams + stream)

    def wide_tile(self, half: int, lane: int, tile: int, rows: int) -> int:
        """The address of a tile that one plane of a half loads; it is put there if it is not there yet."""
        key, words = (half, lane, tile), rows // self.machine.matrix.load_streams
        if key not in self.wide_at:
            start = self.wide_from.get((half, lane), self.machine.slice_words) - words
            for low, high in self._tensors_in(half, lane):
                if low < start + words and start < high:
                    start = low - words
            if start < self._floor(half, lane):
                taken = sum(rows for _, rows in self.wide_at.values()) * self.machine.width
                raise CapacityError(
                    f"the weights need more than is left beside tensors and constants: {taken:,} bytes of them are in "
                    f"memory, of {len(self.model.tiles) * self.machine.tile_bytes:,} on all chips",
                    hint="weights are resident: raise memory.bank_words, or split the model over more chips",
                )
            self.wide_at[key], self.wide_from[half, lane] = (start, rows), start
        return self.wide_at[key][0]

    def wide_room(self, half: int, lane: int) -> int:
        """Words that are left in the slices of a plane."""
        top, floor = self.wide_from.get((half, lane), self.machine.slice_words), self._floor(half, lane)
        return top - floor - sum(max(0, min(high, top) - max(low, floor)) for low, high in self._tensors_in(half, lane))

    def _tensors_in(self, half: int, lane: int) -> list[tuple[int, int]]:
        """Where tensors are in the slices of a plane, from the last address down; what lies in one place is one."""
        if self.first_wide + lane * self.machine.matrix.load_streams >= self.first_constants:
            return []
        return self.held.get(half, [])

    def _floor(self, half: int, lane: int) -> int:
        """The first address in the slices of a plane that neither other weights nor constants have."""
        first, size = self.first_wide + lane * self.machine.matrix.load_streams, self.machine.matrix.load_streams
        held = self.weights[half].end if first + size > self.first_weights else 0
        if first < self.first_weights and first + size > self.first_constants:
            held = max(held, *(self.constant_end.get((half, place), 0) + _SPARE for place in range(CONSTANTS)))
        return held

    def keep_clear(self, tensors: Iterable[Placed]) -> None:
        """Where the tensors are that this chip has: weights lie beside them."""
        held = list(tensors)
        for half in (0, 1):
            spans = sorted(span for each in held if each.half == half for span in self._spans(each))
            joined: list[tuple[int, int]] = []
            for low, high in spans:
                if joined and low <= joined[-1][1]:
                    joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
                else:
                    joined.append((low, high))
            self.held[half] = joined[::-1]

    def _spans(self, tensor: Placed) -> list[tuple[int, int]]:
        if tensor.split is None:
            return [(tensor.base, tensor.base + tensor.words)]
        banks = tensor.split // self.machine.memory.bank_words
        parts = [tensor.split[banks == bank] for bank in np.unique(banks)]
        return [(int(part.min()), int(part.max()) + 1) for part in parts]

    def copies_of(self, tensor: Placed) -> int:
        """The copies of a tensor of 8 bits: two where it has both banks."""
        return self.copies if tensor.root.split is None else 2

    def tensor_slices(self, tensor: Placed, copy: int, residues: np.ndarray) -> np.ndarray:
        """The slices of vectors in a copy; of wide integers, a copy holds a byte."""
        first = self.units.memory(tensor.half, 0)
        return first + (tensor.root.first_copy + copy) * RESIDUES + residues

    def constant_slice(self, half: int, place: int, byte: int) -> int:
        return self.units.memory(half, self.first_constants + 4 * place + byte)

    def tile(self, half: int, tile: int, clear: bool) -> TilePlace:
        """Where a tile lies, which is put in this half if it is not there; `clear` of the constants that are read."""
        lane = self.machine.matrix.planes // 2 - 2
        most = self.wide_from.get((half, lane + 1), self.machine.slice_words)
        constants = max(self.constant_end.get((half, place), 0) for place in range(CONSTANTS)) + _SPARE
        top = self.wide_from.get((half, lane), self.machine.slice_words)
        place = self.weights[half].find(tile, self.tile_rows[tile], clear, (constants, top), most)
        if place is None:
            raise CapacityError(
                f"the weights need more than the {self.machine.slice_words} words of each of "
                f"{self.machine.memory.slices_per_half - self.first_constants} slices: "
                f"tile {len(self.weights[half].places)} of {len(self.model.tiles)}",
                hint="weights are resident: raise memory.bank_words, or split the model over chips",
            )
        if place.beside_constants:
            self.wide_from[half, lane] = min(top, int(place.addresses[0]))
        return place

    def constant(self, half: int, place: int, values: np.ndarray) -> tuple[int, int]:
        """The address and the tag of a constant vector."""
        key = (values.tobytes(), half, place)
        if key not in self.constants:
            end = self.constant_end.get((half, place), 0)
            self.constants[key] = end
            self.constant_end[half, place] = end + 1
            if end >= min(self.wide_from.get((half, lane), self.machine.slice_words) for lane in self._lanes):
                raise CapacityError(f"more than {self.machine.slice_words} constants", hint="raise memory.bank_words")
            self.constant_order[key] = len(self.constant_order)
        return self.constants[key], self.constant_tag + self.constant_order[key]
