"""Layouts as values: which thread of a block holds which element of a tile, and in which of its registers.

A layout is a list of modes for registers, for the lanes of a warp, for warps and for the blocks of a cluster. A mode
takes `size` steps of `step` elements along one axis of the tile; the first of a list runs fastest. So an element's
place along an axis is a sum: one part known when the code is made (the register's) and one that a thread knows (its
own). Sides need not be powers of two: what a layout has beyond a tile's side does not exist. A mode without an axis is
a repetition: its threads hold the same elements.

    registers 8@1      8 neighbours along axis 1 in one thread: 16 bytes of a 16-bit type
    lanes     32@1*8   a warp side by side along axis 1, 8 elements apart
    warps     4@0      four warps one below the other along axis 0
    blocks    8@1*4096 eight blocks of a cluster side by side, where one has not registers enough
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType

from weft.errors import LoweringError

WARP = 32


@dataclass(frozen=True)
class Mode:
    """`size` steps of `step` elements along `axis`, or `size` repetitions of the same where there is none."""

    size: int
    axis: int | None
    step: int = 1

    def __str__(self) -> str:
        if self.axis is None:
            return f"{self.size}@-"
        return f"{self.size}@{self.axis}" + (f"*{self.step}" if self.step != 1 else "")

    @classmethod
    def parse(cls, text: str) -> Mode:
        size, _, place = text.partition("@")
        if place == "-":
            return cls(int(size), None)
        axis, _, step = place.partition("*")
        return cls(int(size), int(axis), int(step or 1))


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tile of `shape` are. The lanes' sizes multiply to 32, those of the warps to theirs."""

    shape: tuple[int, ...]
    registers: tuple[Mode, ...]
    lanes: tuple[Mode, ...]
    warps: tuple[Mode, ...]
    blocks: tuple[Mode, ...] = ()

    def __str__(self) -> str:
        names = ("registers", "lanes", "warps", *(("blocks",) if self.blocks else ()))
        modes = (f"{name} {' '.join(map(str, getattr(self, name))) or '1'}" for name in names)
        return f"{'x'.join(map(str, self.shape))}: {', '.join(modes)}"

    @classmethod
    def parse(cls, text: str) -> Layout:
        shape, _, rest = text.partition(": ")
        lists: list[tuple[Mode, ...]] = []
        for part in rest.split(", "):
            words = part.split(" ")[1:]
            lists.append(() if words == ["1"] else tuple(map(Mode.parse, words)))
        return cls(tuple(int(n) for n in shape.split("x") if n), *lists)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def count(self) -> int:
        """The registers of a thread."""
        return prod(mode.size for mode in self.registers)

    @property
    def warp_count(self) -> int:
        return prod(mode.size for mode in self.warps)

    @property
    def block_count(self) -> int:
        return prod(mode.size for mode in self.blocks)

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.warp_count

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """For each register, where its element lies from the thread's first."""
        return _offsets(self)

    @property
    def _modes(self) -> tuple[Mode, ...]:
        return (*self.registers, *self.lanes, *self.warps, *self.blocks)

    def covered(self, axis: int) -> int:
        """How many places a layout has along an axis: the side of the tile, or more."""
        return 1 + sum((m.size - 1) * m.step for m in self._modes if m.axis == axis)

    def last(self, axis: int) -> int:
        """The place along an axis of the first element of the thread that is furthest along it."""
        threads = (*self.lanes, *self.warps, *self.blocks)
        return sum((m.size - 1) * m.step for m in threads if m.axis == axis)

    @property
    def vector(self) -> Mode:
        """The registers that hold neighbours: the first mode, if it takes single steps."""
        first = self.registers[0] if self.registers else Mode(1, None)
        return first if first.axis is not None and first.step == 1 else Mode(1, None)

    @property
    def neighbours(self) -> int:
        """How many of them can be moved at once, at most: memory has words of powers of two."""
        return self.vector.size & -self.vector.size

    def has_repetition(self) -> bool:
        """Whether several threads hold the same element."""
        return any(mode.axis is None and mode.size > 1 for mode in (*self.lanes, *self.warps, *self.blocks))

    def narrowed(self, shape: Sequence[int]) -> Layout:
        """The layout of an operand that is broadcast to this one's shape, so that no element has to move."""
        result = self
        for axis, (size, own) in enumerate(zip(shape, self.shape, strict=True)):
            if size == 1 and own != 1:
                result = result.sliced(axis)
        if result.shape != tuple(shape):
            raise LoweringError(f"a tile of {tuple(shape)} is not broadcast to {self.shape}")
        return result

    def sliced(self, axis: int) -> Layout:
        """The layout of what is left when an axis is reduced to size 1: all threads along it hold the result."""
        return Layout(
            (*self.shape[:axis], 1, *self.shape[axis + 1 :]),
            tuple(mode for mode in self.registers if mode.axis != axis),
            _without(self.lanes, axis),
            _without(self.warps, axis),
            _without(self.blocks, axis),
        ).merged()

    def merged(self) -> Layout:
        """The same places in as few modes as say so: equal layouts are then equal values."""
        return Layout(self.shape, *map(_merged, (self.registers, self.lanes, self.warps, self.blocks)))

    def moved(self, shape: Sequence[int], axes: Callable[[int], int]) -> Layout:
        """The same places with the axes renamed: the layout of a transposed tile, or of one with axes put in."""
        lists = (
            tuple(mode if mode.axis is None else replace(mode, axis=axes(mode.axis)) for mode in modes)
            for modes in (self.registers, self.lanes, self.warps, self.blocks)
        )
        return Layout(tuple(shape), *lists)

    def place(self, lane: int, warp: int, register: int, block: int = 0) -> tuple[int, ...]:
        """The index of the element that a register of a thread holds."""
        index = list(self.offsets[register])
        for number, modes in ((lane, self.lanes), (warp, self.warps), (block, self.blocks)):
            for mode in modes:
                number, digit = divmod(number, mode.size)
                if mode.axis is not None:
                    index[mode.axis] += digit * mode.step
        return tuple(index)


def _without(modes: Sequence[Mode], axis: int) -> tuple[Mode, ...]:
    return tuple(Mode(mode.size, None) if mode.axis == axis else mode for mode in modes)


def _merged(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    result: list[Mode] = []
    for mode in modes:
        if mode.size == 1:
            continue
        last = result[-1] if result else None
        if last and last.axis == mode.axis and (mode.axis is None or mode.step == last.step * last.size):
            result[-1] = replace(last, size=last.size * mode.size)
        else:
            result.append(mode if mode.axis is not None else Mode(mode.size, None))
    return tuple(result)


@lru_cache(4096)
def _offsets(layout: Layout) -> tuple[tuple[int, ...], ...]:
    offsets = [(0,) * layout.rank]
    for mode in reversed(layout.registers):
        assert mode.axis is not None
        steps = [digit * mode.step for digit in range(mode.size)]
        offsets = [
            (*offset[: mode.axis], offset[mode.axis] + step, *offset[mode.axis + 1 :])
            for offset in offsets
            for step in steps
        ]
    return tuple(offsets)


def blocked(
    shape: Sequence[int],
    warps: int,
    order: Sequence[int],
    vector: int = 1,
    warp_order: Sequence[int] | None = None,
    blocks: int = 1,
    most_warps: Mapping[int, int] = MappingProxyType({}),
) -> Layout:
    """Neighbours along the first axis of `order` in a thread's registers, then lanes side by side, then warps.

    What is left along an axis is repeated in registers. `warp_order` says along which axes warps stand first, and
    `most_warps` how many do along some. Blocks of a cluster have neighbouring parts of the tile, each in one piece.
    """
    left = list(shape)  # what is still to be covered along each axis, in units of `step`
    step = [1] * len(shape)
    registers: list[Mode] = []

    def cover(axis: int, size: int) -> Mode:
        mode = Mode(size, axis, step[axis])
        left[axis] = -(-left[axis] // size)
        step[axis] *= size
        return mode

    if order and vector > 1:
        registers.append(cover(order[0], vector))
    lists: list[tuple[Mode, ...]] = []
    for total, along, most in ((WARP, order, dict[int, int]()), (warps, warp_order or order, most_warps)):
        modes: list[Mode] = []
        for axis in along:
            size = min(total, next_power_of_two(left[axis]), most.get(axis, total))
            if size > 1:
                modes.append(cover(axis, size))
                total //= size
        if total > 1:
            modes.append(Mode(total, None))
        lists.append(tuple(modes))
    shares: dict[int, int] = {}
    for axis in warp_order or order:
        shares[axis] = min(blocks, next_power_of_two(left[axis]))
        blocks //= shares[axis]
    for axis in order:
        each = -(-left[axis] // shares[axis])
        if each > 1:
            registers.append(cover(axis, each))
    modes = [cover(axis, size) for axis, size in shares.items() if size > 1]
    modes += [Mode(blocks, None)] if blocks > 1 else []
    lanes, of_warps = lists
    return Layout(tuple(shape), tuple(registers), lanes, of_warps, tuple(modes)).merged()


def next_power_of_two(size: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


@lru_cache(4096)
def picked(layout: Layout, operand: Layout) -> tuple[int, ...]:
    """For each register of a layout, which one of an operand that is broadcast to it holds its element."""
    places = {offset: number for number, offset in enumerate(operand.offsets)}
    flat = [axis for axis in range(layout.rank) if operand.shape[axis] == 1]
    result: list[int] = []
    for offset in layout.offsets:
        own = list(offset)
        for axis in flat:
            own[axis] = 0
        result.append(places[tuple(own)])
    return tuple(result)


def scalar_layout(warps: int) -> Layout:
    return blocked((), warps, ())
