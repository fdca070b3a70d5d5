"""Where everything lies: slices by what they are for, a bank for each tensor, an address for each tile of weights.

In each half the slices at the edge hold weights and those before them constants. Next to the middle, from where results
come and which activations cross on their way to the other half, are sixteen for activations: four copies, one for each
plane that may read, of four slices, in which the vectors of a tensor lie in turn. So no two units ever ask a slice for
two words, whatever a window looks like. A tensor has one bank of all sixteen; what a layer reads and writes at the same
time lies in different banks or halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.isa import Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Layer, Model, Placed
from weft.spatial.scheduler.expression import in_one_half, streams_of
from weft.spatial.scheduler.regions import Region, assign_regions

CONSTANTS = 3
"""Constants that an expression may have, each in four slices: its bytes."""
_SPARE = 64
"""Words that are kept free for constants which later layers bring."""


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
        self.copies = self.machine.matrix.planes
        slices = self.machine.memory.slices_per_half
        self.first_weights = slices - self.machine.matrix.load_streams
        self.first_wide = slices - self.copies // 2 * self.machine.matrix.load_streams
        self.first_constants = self.copies * RESIDUES
        needed = 4 * CONSTANTS
        if self.first_weights - self.first_constants < needed:
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
        held = self.tile_end[half] if first + size > self.first_weights else 0
        if first < self.first_weights and first + size > self.first_constants:
            held = max(held, *(self.constant_end.get((half, place), 0) + _SPARE for place in range(CONSTANTS)))
        return held

    def keep_clear(self, tensors: Iterable[Placed]) -> None:
        """Where the tensors are that this chip has: weights lie beside them."""
        for half in (0, 1):
            spans = sorted((each.base, each.base + each.words) for each in tensors if each.half == half)
            joined: list[tuple[int, int]] = []
            for low, high in spans:
                if joined and low <= joined[-1][1]:
                    joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
                else:
                    joined.append((low, high))
            self.held[half] = joined[::-1]

    def tensor_slices(self, tensor: Placed, copy: int, residues: np.ndarray) -> np.ndarray:
        """The slices of vectors in a copy; of wide integers, a copy holds a byte."""
        first = self.units.memory(tensor.half, 0)
        return first + copy * RESIDUES + residues

    def constant_slice(self, half: int, place: int, byte: int) -> int:
        return self.units.memory(half, self.first_constants + 4 * place + byte)

    def tile(self, half: int, tile: int) -> int:
        """The address of a tile, which is put in this half if it is not there."""
        if (half, tile) not in self.tile_at:
            self.tile_at[half, tile] = self.tile_end[half]
            self.tile_end[half] += self.machine.load_cycles
            if self.tile_end[half] > min(
                (self.wide_from.get((half, lane), self.machine.slice_words) for lane in range(1, self.copies // 2)),
                default=self.machine.slice_words,
            ):
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
            if end >= self.wide_from.get((half, 0), self.machine.slice_words):
                raise CapacityError(f"more than {self.machine.slice_words} constants", hint="raise memory.bank_words")
            self.constant_order[key] = len(self.constant_order)
        return self.constants[key], self.constant_tag + self.constant_order[key]

    def _read_with(self, tensor: Placed) -> list[Placed]:
        """Tensors that an expression without a product reads beside this one."""
        alone = [_read_by(layer) for layer in self.model.layers if layer.source is None]
        return [other for read in alone if tensor in read for other in read if other is not tensor]

    def _regions(self, near_of: Mapping[int, Sequence[tuple[Placed, bool]]]) -> dict[int, Region] | None:
        """Where layers are on chips of their own, a region for each tensor, chosen for all of them together."""
        roots = [each for each in self.model.tensors if each.within is None]
        apart = {each.number: [(other.number, wholly) for other, wholly in near_of[each.number]] for each in roots}
        return assign_regions(apart, {each.number: each.words for each in roots}, self.machine.memory.banks)

    def _place_tensors(self) -> None:
        """A bank and an address for each tensor, in the order in which they are made.

        The words of a tensor that is read no more are used again, from the first address up. Those of tensors with a
        border, which memory holds from the start, are used once, from the last address down.
        """
        words = self.machine.memory.bank_words
        free = {(half, bank): [(0, words)] for half in (0, 1) for bank in range(self.machine.memory.banks)}
        tag, placed = self.tensor_tag, list[Placed]()
        used = dict.fromkeys(free, 0)
        made, last = _lifetimes(self.model)
        sides, turned = _sides(self.model), dict[int, int]()
        near_of = {each.number: _kept_apart(each, self.model.layers) for each in self.model.tensors}
        regions = self._regions(near_of) if any(layer.chips for layer in self.model.layers) else None
        whole = [each for each in self.model.tensors if each.within is None]
        for tensor in sorted(whole, key=lambda each: made[each.number]):
            tensor.tag = tag
            tag += tensor.blocks * tensor.pixels
            for other in [each for each in placed if last[each.number] < made[tensor.number]]:
                placed.remove(other)
                if not other.border:
                    region = free[other.half, other.bank]
                    region.append((other.base - other.bank * words, other.words))
                    free[other.half, other.bank] = _merged(region)
            apart = near_of[tensor.number]
            held = {each.number for each in placed}
            allowed = [
                region
                for region in free
                if all(not _clash(region, other, wholly) for other, wholly in apart if other.number in held)
            ]
            room = {each: _room(free[each], tensor.words, used[each] if tensor.border else None) for each in allowed}
            roomy = [each for each in allowed if room[each] is not None]
            # What is read together lies together where it may: it leaves other banks to what is written meanwhile.
            group, side = sides.get(tensor.number, (-1, 0))
            if group in turned:
                roomy = [each for each in roomy if each[0] == turned[group] ^ side] or roomy
            near = [other for other in self._read_with(tensor) if other.number in held]
            shared = [each for each in roomy if each in {(other.half, other.bank) for other in near}]
            region = max(shared or roomy, key=lambda each: sum(size for _, size in free[each]), default=None)
            if regions is not None:
                region = regions[tensor.number] if regions[tensor.number] in roomy else None
            if region is None:
                most = max((size for each in allowed for _, size in free[each]), default=0)
                demand = sum(each.words for each in (*placed, tensor))
                raise CapacityError(
                    f"{tensor.name} needs {tensor.words} words of a bank in {self.copies * RESIDUES} slices, and "
                    f"{most} are left; the tensors that are held at the same time need {demand} of {len(free) * words}",
                    hint="raise memory.bank_words",
                )
            start = room[region]
            assert start is not None, "it has room"
            free[region] = _without(free[region], start, tensor.words)
            if not tensor.border:
                used[region] = max(used[region], start + tensor.words)
            tensor.half, tensor.bank = region
            if group >= 0:
                turned.setdefault(group, tensor.half ^ side)
            tensor.base = tensor.bank * words + start
            placed.append(tensor)
        for part in self.model.tensors:
            part.half, part.bank = part.root.half, part.root.bank
        self.keep_clear(whole)


def _room(parts: list[tuple[int, int]], words: int, fresh_from: int | None) -> int | None:
    """Where so many free words begin: the first, or from an address on the last; None where there are none."""
    if fresh_from is None:
        return next((start for start, size in parts if size >= words), None)
    last = max((start + size for start, size in parts), default=0) - words
    fits = any(start <= last and last + words <= start + size for start, size in parts)
    return last if fits and last >= fresh_from else None


def _without(parts: list[tuple[int, int]], start: int, words: int) -> list[tuple[int, int]]:
    """Free parts after some words of one of them were taken."""
    left: list[tuple[int, int]] = []
    for begin, size in parts:
        if begin <= start and start + words <= begin + size:
            left += [(begin, start - begin), (start + words, begin + size - start - words)]
        else:
            left.append((begin, size))
    return [part for part in left if part[1]]


def _merged(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Free parts, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for start, size in sorted(parts):
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        elif size:
            joined.append((start, size))
    return joined


def _lifetimes(model: Model) -> tuple[dict[int, int], dict[int, int]]:
    """The layer that makes each tensor, and the last that reads it."""
    made = {tensor.root.number: -1 for tensor in (*model.inputs, *model.constants)}
    last = {tensor.number: -1 for tensor in model.tensors}
    for number, layer in enumerate(model.layers):
        made.setdefault(layer.output.root.number, number)
        for tensor in _read_by(layer):
            last[tensor.number] = number
    last |= {tensor.root.number: len(model.layers) for tensor in model.outputs}
    return made, last


def _read_by(layer: Layer) -> list[Placed]:
    """The tensors that a layer reads."""
    source = [] if layer.source is None else [layer.source]
    read = [*(each.tensor for each in streams_of(layer.root)), *source, *layer.tile_tensors]
    return list({each.root.number: each.root for each in read}.values())


def _kept_apart(tensor: Placed, layers: list[Layer]) -> list[tuple[Placed, bool]]:
    """Tensors that are used at the same time; True where they are both read, and so must not share slices."""
    found: list[tuple[Placed, bool]] = []
    for layer in layers:
        read = {each.number: each for each in _read_by(layer)}
        if tensor.number in read:
            found += [(other, True) for other in read.values() if other is not tensor and _both(layer, tensor, other)]
            found.append((layer.output.root, False))
        elif tensor is layer.output.root:
            found += [(other, False) for other in read.values()]
    return found


def _sides(model: Model) -> dict[int, tuple[int, int]]:
    """Tensors that are read together with weights of tensors: their group, and on which of its two sides they are."""
    apart: dict[int, list[int]] = {}
    for layer in model.layers:
        for one in _roots(layer.tile_tensors):
            for other in _read_by(layer):
                if other is not one:
                    apart.setdefault(one.number, []).append(other.number)
                    apart.setdefault(other.number, []).append(one.number)
    found: dict[int, tuple[int, int]] = {}
    for group in apart:
        pending = [] if group in found else [(group, 0)]
        while pending:
            number, side = pending.pop()
            if number not in found:
                found[number] = (group, side)
                pending += [(other, 1 - side) for other in apart[number]]
    return found


def _both(layer: Layer, one: Placed, other: Placed) -> bool:
    """Whether two tensors that a layer reads ask for words of the same copies."""
    if any(each.dtype.itemsize > 1 or each in _roots(layer.tile_tensors) for each in (one, other)):
        return True
    source = layer.source is not None and layer.source.root in (one, other)
    return source and not in_one_half(layer)


def _roots(tensors: list[Placed]) -> list[Placed]:
    return [each.root for each in tensors]


def _clash(region: tuple[int, int], other: Placed, wholly: bool) -> bool:
    return region[0] == other.half and (wholly or region[1] == other.bank)
