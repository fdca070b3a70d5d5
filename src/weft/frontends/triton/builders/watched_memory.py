"""Memory as an interpreted kernel sees it: every access is checked against the tensor that the pointer came from.

out of bounds    the place lies outside of the tensor's storage
uninitialised    the place still holds the pattern that `torch.empty` was filled with (see `uninitialised.py`)
race             another program wrote to the place, or read what is written now, and no atomic operation says which
                 of the two came first
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from weft.frontends.triton.builders import uninitialised
from weft.frontends.triton.errors import MemoryAccessError, RaceError, ReadOnlyError
from weft.ir.types import DType
from weft.runtime.writable import is_writable

Array = np.ndarray[Any, Any]
UNKNOWN = -1
"""The region of a pointer that was made from an integer."""
_SEVERAL = -1
"""Stands for the readers of an element of which more than one program has read."""


@dataclass(frozen=True)
class Pointers:
    """Addresses, and for each the number of the region it came from."""

    address: Array
    region: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.address.shape


@dataclass(eq=False)
class Region:
    """The storage of one tensor. `origin` is where the tensor itself begins."""

    name: str
    start: int
    size: int
    origin: int
    itemsize: int
    shape: tuple[int, ...]
    owner: object = None
    poisoned: bool = False
    read_only: bool = False
    writers: Array | None = None
    readers: Array | None = None
    """The programs that last wrote to, and that read, each element: 0 for none, else one more than the number."""
    data: Array = field(init=False)

    def __post_init__(self) -> None:
        self.data = uninitialised.bytes_at(self.start, self.size) if self.size else np.zeros(0, np.uint8)


def region_of(name: str, value: Any) -> Region:
    """The storage of a torch tensor or a NumPy array."""
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        start, end = np.lib.array_utils.byte_bounds(base)
        place = array.ctypes.data, array.itemsize, array.shape
        return Region(name, start, end - start, *place, array, read_only=not array.flags.writeable)
    storage = value.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    poisoned, locked = uninitialised.is_poisoned(start, size), not storage.resizable() and not is_writable(start, size)
    place = value.data_ptr(), value.element_size(), tuple(value.shape)
    return Region(name, start, size, *place, value, poisoned, locked)


races: ContextVar[bool] = ContextVar("races", default=True)
"""Whether it is an error that two programs use one place, and one of them writes to it."""


class Memory:
    """The tensors that a launch may touch, and which program wrote where."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.races = races.get()
        self.program = 0
        self.grid: tuple[int, int, int] = (1, 1, 1)
        self._searched = False
        # Atomic operations order programs: after one at an address, a program comes after all that used it before.
        self._through: dict[int, set[int]] = {}
        self._before: dict[int, set[int]] = {}

    def add(self, name: str, value: Any) -> Pointers:
        """Let kernels see a tensor, and point to its beginning."""
        region = region_of(name, value)
        self.regions.append(region)
        return Pointers(np.asarray(region.origin, np.int64), np.asarray(len(self.regions) - 1, np.int32))

    def coordinates(self, program: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return program % x, program // x % y, program // (x * y)

    # -- accesses --------------------------------------------------------------------------------------------------

    def load(self, pointers: Pointers, mask: Array | None, dtype: DType) -> Array:
        """The elements that pointers point to; zero where the mask is false."""
        stored = np.dtype(np.uint8) if dtype.kind == "bool" else dtype.numpy
        result: Array = np.zeros(pointers.address.size, stored)
        for region, chosen, offset in self._accesses(pointers, mask, stored.itemsize, "load"):
            if region.poisoned:
                self._check_written(region, offset, stored.itemsize)
            if self.races:
                self._note_reads(region, offset)
            result[chosen] = self._read(region, offset, stored)
        result = result.reshape(pointers.address.shape)
        return result != 0 if dtype.kind == "bool" else result

    def store(self, pointers: Pointers, value: Array, mask: Array | None) -> None:
        """Write elements to where pointers point."""
        value = np.ascontiguousarray(value.astype(np.uint8) if value.dtype == np.bool_ else value).reshape(-1)
        for region, chosen, offset in self._accesses(pointers, mask, value.itemsize, "store"):
            if self.races:
                self._note_writes(region, offset)
            self._write(region, offset, value[chosen])

    def update(self, pointers: Pointers, mask: Array | None, dtype: DType, change: Any) -> Array:
        """Elements replaced one after the other by `change(old, lane)`; gives what was there."""
        stored = dtype.numpy
        result: Array = np.zeros(pointers.address.size, stored)
        for region, chosen, offset in self._accesses(pointers, mask, stored.itemsize, "atomic"):
            if region.poisoned:
                self._check_written(region, offset, stored.itemsize)
            self._synchronise(region.start + offset)
            if len(np.unique(offset)) == len(offset):
                old = self._read(region, offset, stored)
                result[chosen] = old
                self._write(region, offset, np.asarray(change(old, chosen), stored))
                continue
            for lane, place in zip(chosen, offset, strict=True):
                where = np.asarray([place])
                old = self._read(region, where, stored)
                result[lane] = old[0]
                self._write(region, where, np.asarray(change(old, np.asarray([lane])), stored))
        return result.reshape(pointers.address.shape)

    def _accesses(
        self, pointers: Pointers, mask: Array | None, itemsize: int, what: str
    ) -> Iterator[tuple[Region, Array, Array]]:
        """For each region: the lanes that touch it, and at which byte. Raises if one lies outside."""
        address = pointers.address.reshape(-1)
        lanes = np.arange(address.size) if mask is None else np.flatnonzero(mask)
        if not lanes.size:
            return
        numbers = np.broadcast_to(pointers.region, pointers.address.shape).reshape(-1)[lanes]
        for number in np.unique(numbers):
            chosen = lanes[numbers == number]
            for region, part in self._split(int(number), chosen, address, what):
                if region.read_only and what != "load":
                    raise ReadOnlyError(
                        f"{what} to `{region.name}`, whose memory is read-only{self._in_program()}",
                        hint="pass a copy, or memory that may be written to",
                    )
                offset = address[part] - region.start
                outside = (offset < 0) | (offset + itemsize > region.size)
                if outside.any():
                    lane = int(np.flatnonzero(outside)[0])
                    self._report_outside(region, int(address[part][lane]), what, int(part[lane]), pointers.shape)
                yield region, part, offset

    def _split(self, number: int, lanes: Array, address: Array, what: str) -> list[tuple[Region, Array]]:
        if number != UNKNOWN:
            return [(self.regions[number], lanes)]
        found: list[tuple[Region, Array]] = []
        left = lanes
        while left.size:
            region = self._find(int(address[left[0]]))
            if region is None:
                raise MemoryAccessError(
                    f"{what} through an address that belongs to no tensor: {int(address[left[0]]):#x}"
                    f"{self._in_program()}",
                    hint="pointers made from integers must point into a tensor that is alive",
                )
            inside = (address[left] >= region.start) & (address[left] < region.start + region.size)
            found.append((region, left[inside]))
            left = left[~inside]
        return found

    def _find(self, address: int) -> Region | None:
        for region in self.regions:
            if region.start <= address < region.start + region.size:
                return region
        if self._searched:
            return None
        self._searched = True
        self.regions += [region_of("a tensor", tensor) for tensor in _live_tensors()]
        return self._find(address)

    def _read(self, region: Region, offset: Array, stored: np.dtype[Any]) -> Array:
        if not (offset % stored.itemsize).any():
            usable = region.size // stored.itemsize * stored.itemsize
            return region.data[:usable].view(stored)[offset // stored.itemsize]
        places = offset[:, None] + np.arange(stored.itemsize)
        return np.ascontiguousarray(region.data[places]).view(stored).reshape(-1)

    def _write(self, region: Region, offset: Array, value: Array) -> None:
        size = value.itemsize
        data = region.data
        if not (offset % size).any():
            data[: region.size // size * size].view(value.dtype)[offset // size] = value
        else:
            places = offset[:, None] + np.arange(size)
            data[places] = np.ascontiguousarray(value).view(np.uint8).reshape(-1, size)

    # -- reports ---------------------------------------------------------------------------------------------------

    def _in_program(self) -> str:
        return f", in program {self.coordinates(self.program)} of the grid {self.grid}"

    def _report_outside(self, region: Region, address: int, what: str, lane: int, shape: Sequence[int]) -> None:
        index = (address - region.origin) // region.itemsize
        where = tuple(int(i) for i in np.unravel_index(lane, shape)) if shape else ()
        count = int(np.prod(region.shape, dtype=np.int64))
        at = f" (element {where} of the tile)" if where else ""
        raise MemoryAccessError(
            f"out-of-bounds {what} of `{region.name}` at index {index}{at}: the tensor has {count} elements, shape"
            f" {region.shape}{self._in_program()}",
            hint="give a mask: mask=offsets < n",
        )

    def _check_written(self, region: Region, offset: Array, itemsize: int) -> None:
        fresh = uninitialised.untouched(region.data, offset, itemsize)
        if fresh.any():
            index = (region.start + int(offset[fresh][0]) - region.origin) // region.itemsize
            raise MemoryAccessError(
                f"read of uninitialised memory: `{region.name}` at index {index}, shape {region.shape}; it was made by"
                f" torch.empty and nothing was written there{self._in_program()}",
                hint="fill it first, or make it with torch.zeros",
            )

    def _note_reads(self, region: Region, offset: Array) -> None:
        place = offset // region.itemsize
        if region.writers is not None:
            self._check_order(region, offset, region.writers[place], "program {here} reads what {there} wrote to")
        if region.readers is None:
            region.readers = np.zeros(region.size // region.itemsize + 1, np.int32)
        before = region.readers[place]
        region.readers[place] = np.where((before == 0) | (before == self.program + 1), self.program + 1, _SEVERAL)

    def _note_writes(self, region: Region, offset: Array) -> None:
        place = offset // region.itemsize
        if region.writers is None:
            region.writers = np.zeros(region.size // region.itemsize + 1, np.int32)
        self._check_order(region, offset, region.writers[place], "{there} and program {here} both write to")
        if region.readers is not None:
            self._check_order(region, offset, region.readers[place], "program {here} writes what {there} read of")
        region.writers[place] = self.program + 1

    def _check_order(self, region: Region, offset: Array, others: Array, what: str) -> None:
        """Raise if another program was at a place before, and nothing says that it comes first."""
        suspect = (others != 0) & (others != self.program + 1)
        if not suspect.any():
            return
        known = self._before.get(self.program, set())
        for lane in np.flatnonzero(suspect):
            other = int(others[lane]) - 1
            if other not in known and (other >= 0 or not known):
                self._report_race(region, int(offset[lane]), other, what)

    def _report_race(self, region: Region, offset: int, other: int, what: str) -> None:
        index = (region.start + offset - region.origin) // region.itemsize
        there = f"program {self.coordinates(other)}" if other >= 0 else "another program"
        said = what.format(here=self.coordinates(self.program), there=there)
        raise RaceError(
            f"{said} `{region.name}` at index {index}: which of them comes first is left to chance",
            hint="let each program have its own part (tl.program_id), or use an atomic operation; where it makes no"
            " difference, weft.triton.interpret(races=False)",
        )

    def _synchronise(self, addresses: Array) -> None:
        if not self.races:
            return
        before = self._before.setdefault(self.program, set())
        for address in map(int, addresses):
            earlier = self._through.setdefault(address, set())
            before |= earlier
            earlier |= before
            earlier.add(self.program)


def _live_tensors() -> list[Any]:
    """Every torch tensor there is, for pointers whose tensor was not an argument."""
    import torch

    tensors: list[Any] = []
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu" and _has_memory(thing):
            tensors.append(thing)
    return tensors


def _has_memory(tensor: Any) -> bool:
    """Sparse tensors and those of transformations (`torch.func`, functionalisation) have no memory of their own."""
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return False
    return True
