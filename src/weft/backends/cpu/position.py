"""Where in a tile code is being made, the walk along its innermost axis, and the elements that lie along it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from xdsl.ir import SSAValue

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64, vector

UNROLLED_STEPS = 8
"""Steps of the innermost axis that are laid out one after the other instead of as a loop, if there are no more."""
_STRETCH = 32


_Place: TypeAlias = "tuple[tuple[str, ...], int, int]"


@dataclass
class Position:
    """An index an axis, `lanes` elements along the axis `inner`; `values` holds what has been computed there.

    `others` are the positions in tiles of other shapes that correspond to it.
    """

    index: tuple[V, ...]
    inner: int
    lanes: int
    values: dict[SSAValue, V] = field(default_factory=dict[SSAValue, V])
    others: dict[_Place, Position] = field(default_factory=dict["_Place", "Position"])

    def elsewhere(self, index: tuple[V, ...], inner: int, lanes: int) -> Position:
        """The position with this index in a tile of another shape: always the same one."""
        place = (tuple(v.name for v in index), inner, lanes)
        if place not in self.others:
            self.others[place] = Position(index, inner, lanes, others=self.others)
        return self.others[place]

    def copy(self) -> Position:
        """The same position on a way of its own: what is computed there is not known here."""
        result = Position(self.index, self.inner, self.lanes, dict(self.values))
        for place, other in self.others.items():
            result.others[place] = Position(other.index, other.inner, other.lanes, dict(other.values), result.others)
        return result

    def known_at(self, index: tuple[V, ...], lanes: int, still: Callable[[SSAValue, int], bool]) -> Position:
        """A position along the same axis, with what is known of it: values that are the same all along."""
        values = {v: known for v, known in self.values.items() if still(v, self.inner)}
        result = Position(index, self.inner, lanes, values)
        for place, other in self.others.items():
            if other.lanes == 1:
                result.others[place] = Position(other.index, other.inner, 1, dict(other.values), result.others)
        return result

    def known(self, mask: SSAValue | None) -> bool | None:
        """Whether a mask is true, or false, for all places that code is being made for."""
        value = None if mask is None else self.values.get(mask)
        return None if value is None else {"true": True, "false": False}.get(value.name)


def lanes_for(target: CpuTarget, bits: int, extent: V) -> int:
    """Elements a step: the target's for 4-byte types, fewer for wide types and for short axes."""
    lanes = target.lanes // 2 if bits > 32 else target.lanes
    if not extent.name.startswith("%"):
        while lanes > 1 and lanes > int(extent.name):
            lanes //= 2
    return lanes


def walk(
    b: Function,
    extent: V,
    lanes: int,
    turn: Callable[[V, int], None],
    unrolled: int = UNROLLED_STEPS,
    pause: Callable[[], None] | None = None,
) -> None:
    """Walk an axis: `turn(start, lanes)` makes the code of a step. Whole steps first, then what is left.

    `pause` makes code that runs now and then on a long way.
    """

    if extent.name.startswith("%"):
        if lanes == 1:
            with b.loop(i64(0), extent, i64(1)) as i:
                turn(i, 1)
            return
        whole = b.binary("and", extent, i64(-lanes))
        walk_steps(b, i64(0), whole, lanes, turn, pause)
        with b.loop(whole, extent, i64(1)) as i:
            turn(i, 1)
        return
    count = int(extent.name)
    steps = count // lanes
    if steps <= (1 if lanes == 1 else unrolled // max(1, lanes // 16)):
        for step in range(steps):
            turn(i64(step * lanes), lanes)
    elif steps:
        walk_steps(b, i64(0), i64(steps * lanes), lanes, turn, pause)
    _walk_remainder(steps * lanes, count, lanes, turn)


def walk_steps(
    b: Function, start: V, stop: V, lanes: int, turn: Callable[[V, int], None], pause: Callable[[], None] | None
) -> None:
    """Walk a part of an axis that is made of whole steps."""
    if pause is None or (not stop.name.startswith("%") and int(stop.name) <= 2 * _STRETCH * lanes):
        with b.loop(start, stop, i64(lanes)) as i:
            turn(i, lanes)
        return
    with b.loop(start, stop, i64(_STRETCH * lanes)) as first:
        end = b.intrinsic("smin", b.add(first, i64(_STRETCH * lanes)), stop)
        with b.loop(first, end, i64(lanes)) as i:
            turn(i, lanes)
        pause()


def walk_rest(b: Function, start: V, count: int, lanes: int, turn: Callable[[V, int], None]) -> None:
    """Walk an axis of known length from some step on."""
    whole = count - count % lanes
    with b.loop(start, i64(whole), i64(lanes)) as i:
        turn(i, lanes)
    _walk_remainder(whole, count, lanes, turn)


def _walk_remainder(start: int, count: int, lanes: int, turn: Callable[[V, int], None]) -> None:
    """The last elements, fewer than a step has: in powers of two."""
    while start < count:
        lanes //= 2
        if count - start >= lanes:
            turn(i64(start), lanes)
            start += lanes


def read_along(b: Function, buffer: Buffer, here: Position, lanes: int) -> V:
    """The elements of a buffer at a position; along an axis that is not the last they lie apart."""
    if lanes == 1:
        return buffer.read(b, here.index, 1)
    stride = prod(buffer.shape[here.inner + 1 :])
    raw = load_strided(b, buffer.element, buffer.address(b, here.index), i64(stride), lanes, buffer.align)
    return buffer.loaded(b, raw)


def write_along(b: Function, buffer: Buffer, value: V, here: Position, lanes: int) -> None:
    """Write the elements of a buffer at a position; along an axis that is not the last they lie apart."""
    stride = prod(buffer.shape[here.inner + 1 :]) if lanes > 1 else 1
    if stride == 1:
        buffer.write(b, b.splat(value, lanes), here.index)
        return
    for lane in range(lanes):
        moved = b.add(here.index[here.inner], i64(lane))
        element = b.extract(value, lane) if value.lanes > 1 else value
        buffer.write(b, element, [*here.index[: here.inner], moved, *here.index[here.inner + 1 :]])


def load_strided(b: Function, element: str, address: V, stride: V, lanes: int, align: int) -> V:
    """`lanes` elements that lie `stride` apart in memory. Nothing beside or behind the last one is read."""
    type_ = vector(element, lanes)
    if lanes == 1 or stride.name == "1":
        return b.load(type_, address, align)
    if stride.name == "2":
        # Two vectors that overlap by one element hold the even ones.
        low = b.load(type_, address, align)
        high = b.load(type_, b.gep(address, i64(lanes - 1), element), align)
        return b.shuffle(low, high, [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)])
    if stride.name == "-1":
        backwards = b.load(type_, b.gep(address, i64(1 - lanes), element), align)
        return b.shuffle(backwards, backwards, list(range(lanes))[::-1])
    raw = V(type_, "poison")
    for lane in range(lanes):
        raw = b.insert(raw, b.load(element, b.gep(address, b.mul(stride, i64(lane)), element), align), lane)
    return raw
