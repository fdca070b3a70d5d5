"""Where tensors lie: a region of memory for each, and the words of it that no other tensor has at that time.

The slices for tensors of a half are four copies of four. A tensor that has all copies has one bank of them. One whose
readers are content with two copies, one for the planes of each half, has both banks of these: what is written first is
in one and what is written last in the other, so that the next layer begins with the first while the last is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Layer, Model, Placed
from weft.spatial.scheduler.expression import in_one_half, streams_of
from weft.spatial.scheduler.regions import Region, assign_regions

Cell = tuple[int, int, int]
"""A half, a pair of copies, and a bank."""
_PAIR = 2
"""Copies of a tensor in two banks: one for the planes of each half."""


class CapacityError(UnsupportedError):
    """A model that does not fit: the message has demand and capacity."""


@dataclass(frozen=True)
class _Spot:
    """Where a tensor may lie: the cells that have the same words of it, and how many words these are."""

    half: int
    bank: int
    first_copy: int
    parts: tuple[tuple[tuple[Cell, ...], int], ...]

    @property
    def cells(self) -> list[Cell]:
        return [cell for cells, _ in self.parts for cell in cells]


@dataclass
class TensorPlaces:
    """Gives each tensor of a model its place, in the order in which they are made."""

    machine: StreamingMachine
    model: Model
    copies: int
    late: Mapping[int, np.ndarray]
    """For each tensor in two banks, whether each of its words is written late."""
    free: dict[Cell, list[tuple[int, int]]] = field(default_factory=dict[Cell, list[tuple[int, int]]])
    used: dict[Cell, int] = field(default_factory=dict[Cell, int])
    placed: dict[int, tuple[Placed, _Spot]] = field(default_factory=dict[int, tuple[Placed, "_Spot"]])

    def __post_init__(self) -> None:
        memory = self.machine.memory
        pairs = range(self.copies // _PAIR)
        cells = [(half, pair, bank) for half in (0, 1) for pair in pairs for bank in range(memory.banks)]
        self.free = {cell: [(0, memory.bank_words)] for cell in cells}
        self.used = dict.fromkeys(cells, 0)

    def place(self, tag: int) -> None:
        """Set the half, the words and the tags of every tensor, tags from the given one on.

        The words of a tensor that is read no more are used again, from the first address up. Those of tensors with a
        border, which memory holds from the start, are used once, from the last address down.
        """
        made, last = _lifetimes(self.model)
        sides, turned = _sides(self.model), dict[int, int]()
        near_of = {each.number: _kept_apart(each, self.model.layers) for each in self.model.tensors}
        regions = self._regions(near_of) if any(layer.chips for layer in self.model.layers) else None
        whole = [each for each in self.model.tensors if each.within is None]
        for tensor in sorted(whole, key=lambda each: made[each.number]):
            tensor.tag = tag
            tag += tensor.blocks * tensor.pixels
            for number in [each for each in self.placed if last[each] < made[tensor.number]]:
                self._give_back(number)
            allowed = self._allowed(tensor, near_of[tensor.number])
            roomy = [spot for spot in allowed if self._room(spot, tensor) is not None]
            if self.late:
                near = {each.number: each for each, _ in near_of[tensor.number]}
                later = [each for each in near.values() if made[each.number] > made[tensor.number]]
                blocked = [self._blocked(spot, tensor, later, near_of) for spot in roomy]
                roomy = [spot for spot, count in zip(roomy, blocked, strict=True) if count == min(blocked)]
            # What is read together lies together where it may: it leaves other banks to what is written meanwhile.
            group, side = sides.get(tensor.number, (-1, 0))
            if group in turned:
                roomy = [each for each in roomy if each.half == turned[group] ^ side] or roomy
            beside = {(each.half, each.bank) for each in self._read_with(tensor) if each.number in self.placed}
            shared = [each for each in roomy if (each.half, each.bank) in beside]
            spot = max(shared or roomy, key=self._left, default=None)
            if regions is not None:
                spot = next((each for each in roomy if (each.half, each.bank) == regions[tensor.number]), None)
            if spot is None:
                raise self._refusal(tensor, allowed)
            if group >= 0:
                turned.setdefault(group, spot.half ^ side)
            self._take(spot, tensor)
        for part in self.model.tensors:
            part.half, part.bank = part.root.half, part.root.bank

    def _spots(self, tensor: Placed) -> list[_Spot]:
        pairs, banks = range(self.copies // _PAIR), range(self.machine.memory.banks)
        if tensor.number not in self.late:
            return [
                _Spot(half, bank, 0, ((tuple((half, pair, bank) for pair in pairs), tensor.words),))
                for half in (0, 1)
                for bank in banks
            ]
        counts = np.bincount(self.late[tensor.number], minlength=2)
        return [
            _Spot(half, -1, pair * _PAIR, tuple((((half, pair, bank),), int(counts[bank])) for bank in (0, 1)))
            for half in (0, 1)
            for pair in pairs
        ]

    def _allowed(self, tensor: Placed, apart: Sequence[tuple[Placed, bool]]) -> list[_Spot]:
        """Where a tensor may lie beside those that are used at the same time."""
        held = [(self.placed[other.number][1], wholly) for other, wholly in apart if other.number in self.placed]
        return [spot for spot in self._spots(tensor) if not any(_clash(spot, *other) for other in held)]

    def _blocked(
        self,
        spot: _Spot,
        tensor: Placed,
        later: Iterable[Placed],
        near_of: Mapping[int, Sequence[tuple[Placed, bool]]],
    ) -> int:
        """How many tensors that are placed later would have no place beside this one."""
        count = 0
        for other in later:
            ways = [wholly for each, wholly in near_of[other.number] if each is tensor]
            left = self._allowed(other, near_of[other.number])
            count += all(any(_clash(each, spot, wholly) for wholly in ways) for each in left)
        return count

    def _shared(self, cells: Sequence[Cell]) -> list[tuple[int, int]]:
        """What is free in all of some cells."""
        found = self.free[cells[0]]
        for cell in cells[1:]:
            found = _common(found, self.free[cell])
        return found

    def _left(self, spot: _Spot) -> int:
        return sum(size for cells, _ in spot.parts for _, size in self._shared(cells))

    def _room(self, spot: _Spot, tensor: Placed) -> list[int] | None:
        """Where the words of each part begin; None where there are too few."""
        found: list[int] = []
        for cells, words in spot.parts:
            fresh = max(self.used[cell] for cell in cells) if tensor.border else None
            start = _room(self._shared(cells), words, fresh)
            if start is None:
                return None
            found.append(start)
        return found

    def _take(self, spot: _Spot, tensor: Placed) -> None:
        starts = self._room(spot, tensor)
        assert starts is not None, "it has room"
        for (cells, words), start in zip(spot.parts, starts, strict=True):
            for cell in cells:
                self.free[cell] = _without(self.free[cell], start, words)
                if not tensor.border:
                    self.used[cell] = max(self.used[cell], start + words)
        tensor.half, tensor.bank, tensor.first_copy = spot.half, spot.bank, spot.first_copy
        bank_words = self.machine.memory.bank_words
        tensor.base, tensor.split = max(0, tensor.bank) * bank_words + starts[0], None
        if tensor.number in self.late:
            late = self.late[tensor.number]
            within = np.where(late, np.cumsum(late), np.cumsum(1 - late)) - 1
            tensor.split = within + np.where(late, bank_words + starts[1], starts[0])
        self.placed[tensor.number] = tensor, spot

    def _give_back(self, number: int) -> None:
        tensor, spot = self.placed.pop(number)
        if tensor.border:
            return
        bank_words = self.machine.memory.bank_words
        for cells, words in spot.parts:
            for cell in cells:
                first = tensor.base - cell[2] * bank_words
                if tensor.split is not None:
                    own = tensor.split[tensor.split // bank_words == cell[2]]
                    first = int(own.min(initial=(cell[2] + 1) * bank_words)) - cell[2] * bank_words
                self.free[cell] = _merged([*self.free[cell], (first, words)])

    def _refusal(self, tensor: Placed, allowed: Sequence[_Spot]) -> CapacityError:
        if not allowed:
            return CapacityError(
                f"{tensor.name} is used together with tensors in all banks of the {self.copies * RESIDUES} slices "
                "for tensors in each half",
                hint="raise memory.banks or memory.slices_per_half",
            )
        words = 2 * self.machine.memory.banks * self.machine.memory.bank_words
        most = max((size for spot in allowed for cells, _ in spot.parts for _, size in self._shared(cells)), default=0)
        demand = sum(each.words for each in (tensor, *(held for held, _ in self.placed.values())))
        return CapacityError(
            f"{tensor.name} needs {tensor.words} words of a bank in {self.copies * RESIDUES} slices, and {most} are "
            f"left; the tensors that are held at the same time need {demand} of {words}",
            hint="raise memory.bank_words",
        )

    def _read_with(self, tensor: Placed) -> list[Placed]:
        """Tensors that an expression without a product reads beside this one."""
        alone = [_read_by(layer) for layer in self.model.layers if layer.source is None]
        return [other for read in alone if tensor in read for other in read if other is not tensor]

    def _regions(self, near_of: Mapping[int, Sequence[tuple[Placed, bool]]]) -> dict[int, Region] | None:
        """Where layers are on chips of their own, a region for each tensor, chosen for all of them together."""
        roots = [each for each in self.model.tensors if each.within is None]
        apart = {each.number: [(other.number, wholly) for other, wholly in near_of[each.number]] for each in roots}
        return assign_regions(apart, {each.number: each.words for each in roots}, self.machine.memory.banks)


def _clash(one: _Spot, other: _Spot, wholly: bool) -> bool:
    """Whether two places share slices, or not wholly banks of them."""
    if wholly:
        return bool({cell[:2] for cell in one.cells} & {cell[:2] for cell in other.cells})
    return not set(one.cells).isdisjoint(other.cells)


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


def _common(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is in two lists of free parts."""
    both = [(max(a, b), min(a + m, b + n)) for a, m in one for b, n in other]
    return [(start, end - start) for start, end in both if start < end]


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
