"""What layouts say, for all threads of a cluster at once: the simulator's own reading of `ir/layouts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from weft.backends.nvidia.check.simulator_memory import SimulationError
from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode


class CoverageError(SimulationError):
    """An element of a tile that no thread holds, or that several hold or write where one should."""


@dataclass(frozen=True, eq=False)
class Holding:
    """For each register of each thread (arrays [threads, registers]) the element that it holds.

    `index` has an axis more, in front, for those of the tile. `inside` says whether the tile has such an element,
    `first` which place of the flat array holds the same element first, and `owner` which of those that hold an element
    is to write it.
    """

    index: np.ndarray
    inside: np.ndarray
    first: np.ndarray
    owner: np.ndarray

    def existing(self, extents: Sequence[int]) -> np.ndarray:
        """Which elements lie within extents."""
        result = self.inside.copy()
        for along, extent in zip(self.index, extents, strict=True):
            result &= along < extent
        return result


@lru_cache(512)
def holding(layout: Layout) -> Holding:
    """Who holds what. Every element must be held, and only modes without an axis may repeat one."""
    threads, registers = np.arange(layout.threads * layout.block_count), np.arange(layout.count)
    index = np.zeros((layout.rank, threads.size, registers.size), np.int64)
    owner = np.ones((threads.size, registers.size), bool)
    for numbers, modes in (
        (registers[None, :], layout.registers),
        (threads[:, None] % WARP, layout.lanes),
        (threads[:, None] // WARP % layout.warp_count, layout.warps),
        (threads[:, None] // layout.threads, layout.blocks),
    ):
        for mode, digit in zip(modes, digits(numbers, modes), strict=True):
            if mode.axis is None:
                owner &= digit == 0
            else:
                index[mode.axis] += digit * mode.step
    inside = np.ones(owner.shape, bool)
    for along, side in zip(index, layout.shape, strict=True):
        inside &= along < side
    linear = np.where(inside, _linear(index, layout.shape), -1)
    _check_coverage(layout, linear, owner)
    flat = linear.reshape(-1)
    _, places, inverse = np.unique(flat, return_index=True, return_inverse=True)
    first = np.where(flat >= 0, places[inverse.reshape(-1)], np.arange(flat.size))
    return Holding(index, inside, first.reshape(linear.shape), owner & inside)


def digits(numbers: np.ndarray, modes: Sequence[Mode]) -> list[np.ndarray]:
    """The steps that numbered registers, lanes or warps take along each mode; the first runs fastest."""
    result: list[np.ndarray] = []
    for mode in modes:
        result.append(numbers % mode.size)
        numbers = numbers // mode.size
    return result


def _linear(index: np.ndarray, sides: Sequence[int]) -> np.ndarray:
    result = np.zeros(index.shape[1:], np.int64)
    for along, side in zip(index, sides, strict=True):
        result = result * side + along
    return result


def _check_coverage(layout: Layout, linear: np.ndarray, owner: np.ndarray) -> None:
    if prod(mode.size for mode in layout.lanes) != WARP:
        raise CoverageError(f"a warp has {WARP} lanes, not those of {layout}")
    held = np.bincount(linear[(linear >= 0) & owner], minlength=prod(layout.shape))
    wrong = np.flatnonzero(held != 1)
    if wrong.size:
        element = _index(int(wrong[0]), layout.shape)
        raise CoverageError(f"element {element} is held {held[wrong[0]]} times by {layout}")


def _index(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    result: list[int] = []
    for side in reversed(shape):
        number, place = divmod(number, side)
        result.insert(0, place)
    return tuple(result)


@lru_cache(1024)
def picks(layout: Layout, operand: Layout, together: int = 1) -> np.ndarray:
    """For each register of a layout, which of the thread's own registers holds that element of an operand.

    The operand is broadcast: it has one element along axes of size 1. So many neighbours along axis 0 are `together` in
    one of its elements. -1 is for what lies outside the tile.
    """
    wanted, held = holding(layout), holding(operand)
    index = wanted.index.copy()
    index[:1] //= together
    for axis, side in enumerate(operand.shape):
        if side == 1:
            index[axis] = 0
    if wanted.inside.shape[0] != held.inside.shape[0]:
        raise CoverageError(f"{layout} and {operand} have different numbers of threads")
    sides = [1 + max(int(a.max(initial=0)), int(b.max(initial=0))) for a, b in zip(index, held.index, strict=True)]
    threads = np.arange(layout.threads * layout.block_count)[:, None] * prod(sides)
    keys = (threads + _linear(held.index, sides)).reshape(-1)
    order = np.argsort(keys, kind="stable")
    sought = threads + _linear(index, sides)
    found = np.searchsorted(keys, sought, sorter=order)
    places = order[np.minimum(found, keys.size - 1)]
    there = keys[places] == sought
    if (wanted.inside & ~there).any():
        thread, register = (int(n[0]) for n in np.nonzero(wanted.inside & ~there))
        element = tuple(int(n) for n in index[:, thread, register])
        raise CoverageError(f"thread {thread} needs element {element} of {operand} for {layout}, and has it not")
    return np.where(there, places % operand.count, -1)


@lru_cache(512)
def reduced_registers(layout: Layout, result: Layout, axis: int) -> tuple[int, ...]:
    """For each register of a layout, the register of the result that it goes into when an axis is reduced."""
    source, target = holding(layout), holding(result)
    index = source.index.copy()
    index[axis] = 0
    sides = [1 + max(int(a.max(initial=0)), int(b.max(initial=0))) for a, b in zip(index, target.index, strict=True)]
    if source.inside.shape[0] != target.inside.shape[0]:
        raise CoverageError(f"{layout} and {result} have different numbers of threads")
    keys, wanted = _linear(target.index, sides), _linear(index, sides)
    numbers = {int(key): number for number, key in enumerate(keys[0])}
    try:
        into = [numbers[int(key)] for key in wanted[0]]
    except KeyError as error:
        raise CoverageError(f"{layout} does not become {result} when axis {axis} is reduced") from error
    if set(into) != set(range(result.count)) or (keys[:, into] != wanted).any():
        raise CoverageError(f"{layout} does not become {result} when axis {axis} is reduced")
    return tuple(into)
