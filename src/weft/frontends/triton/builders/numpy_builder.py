"""Kernels in NumPy: `NumpyBuilder` computes each primitive at once, for one program at a time.

`interpret_launch` calls the kernel's Python function itself, program by program: real frames, to step through and
print in. Accesses to memory are checked (see `watched_memory.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontends.triton.builders.builder import Combine, Handle, Shape
from weft.frontends.triton.builders.watched_memory import UNKNOWN, Array, Memory, Pointers
from weft.frontends.triton.errors import DeviceAssertError, MemoryAccessError
from weft.ir.types import DType
from weft.ops.numerics import NARROW
from weft.tile.functions import COMBINERS, FUNCTIONS

_BY_BITS: dict[str, Any] = {
    "fmax": np.fmax,
    "fmin": np.fmin,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class NumpyBuilder:
    """The primitives, computed at once. A handle is an array, or `Pointers`."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.program: tuple[int, int, int] = (0, 0, 0)
        self.location = ""

    def enter_program(self, x: int, y: int, z: int) -> None:
        """What follows is computed for this program."""
        self.program = (x, y, z)
        columns, rows, _ = self.memory.grid
        self.memory.program = x + columns * (y + rows * z)

    # -- making values ---------------------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, dtype: DType, shape: Shape) -> Handle:
        return np.broadcast_to(np.asarray(value).astype(dtype.numpy), shape)

    def program_id(self, axis: int) -> Handle:
        return np.asarray(self.program[axis], np.int32)

    def num_programs(self, axis: int) -> Handle:
        return np.asarray(self.memory.grid[axis], np.int32)

    def arange(self, start: int, stop: int) -> Handle:
        return np.arange(start, stop, dtype=np.int32)

    # -- elementwise -----------------------------------------------------------------------------------------------

    def map(self, function: str, args: Sequence[Handle], dtype: DType) -> Handle:
        with np.errstate(all="ignore"):
            return np.asarray(FUNCTIONS[function].numpy(*args))

    def cast(self, value: Handle, source: DType, target: DType, rounding: str | None = None) -> Handle:
        with np.errstate(all="ignore"):
            if rounding == "rtz":
                return _towards_zero(value, target)
            if source.is_float and target.kind == "uint":
                # A negative number wraps around, as its integer does.
                wide = value.astype(np.float64) if source.numpy in NARROW else value
                signed = np.where(wide < 0, wide, 0).astype(np.int64).astype(target.numpy)
                return np.where(wide < 0, signed, np.where(wide < 0, 0, wide).astype(target.numpy))
            return np.asarray(value).astype(target.numpy)

    def bitcast(self, value: Handle, source: DType, target: DType) -> Handle:
        return np.ascontiguousarray(value).view(target.numpy).reshape(np.shape(value))

    # -- shape -----------------------------------------------------------------------------------------------------

    def view(self, value: Handle, shape: Shape, offset: int, strides: Sequence[int]) -> Handle:
        if isinstance(value, Pointers):
            regions = np.broadcast_to(value.region, value.address.shape)
            return Pointers(*(self.view(part, shape, offset, strides) for part in (value.address, regions)))
        flat = np.ascontiguousarray(value).reshape(-1)
        steps = [stride * flat.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)

    def take(self, value: Handle, indices: Handle, axis: int) -> Handle:
        length = value.shape[axis]
        if ((indices < 0) | (indices >= length)).any():
            worst = int(indices[(indices < 0) | (indices >= length)][0])
            raise MemoryAccessError(
                f"tl.gather takes index {worst} of an axis of length {length}, in program {self.program}"
            )
        if isinstance(value, Pointers):
            regions = np.broadcast_to(value.region, value.address.shape)
            return Pointers(*(np.take_along_axis(part, indices, axis) for part in (value.address, regions)))
        return np.take_along_axis(value, indices.astype(np.int64), axis)

    # -- structured ------------------------------------------------------------------------------------------------

    def reduce(
        self, values: Sequence[Handle], dtypes: Sequence[DType], axis: int, combine: Combine | str
    ) -> list[Handle]:
        with np.errstate(all="ignore"):
            if not isinstance(combine, str):
                return self._folded(values, axis, combine)
            (value,), (dtype,) = values, dtypes
            if combine in _BY_BITS:
                wide = value.astype(np.float32) if value.dtype in NARROW else value
                return [np.asarray(_BY_BITS[combine].reduce(wide, axis=axis)).astype(value.dtype)]
            combiner = COMBINERS[combine]
            result = combiner.reduce(value.astype(combiner.accumulator(dtype).numpy), axis)
            return [np.asarray(result).astype(combiner.result_dtype(dtype).numpy)]

    def _folded(self, values: Sequence[Handle], axis: int, combine: Combine) -> list[Handle]:
        """Neighbours combined, again and again, in their order."""
        parts = [np.moveaxis(value, axis, 0) for value in values]
        while (length := parts[0].shape[0]) > 1:
            half = length // 2
            left, right = [part[0 : 2 * half : 2] for part in parts], [part[1 : 2 * half : 2] for part in parts]
            joined = combine(left, right)
            parts = [
                np.concatenate([one, part[2 * half :]]) if length % 2 else one
                for one, part in zip(joined, parts, strict=True)
            ]
        return [np.asarray(part[0]) for part in parts]

    def scan(
        self, values: Sequence[Handle], dtypes: Sequence[DType], axis: int, combine: Combine | str, reverse: bool
    ) -> list[Handle]:
        parts = [np.moveaxis(value, axis, 0) for value in values]
        parts = [part[::-1] for part in parts] if reverse else parts
        with np.errstate(all="ignore"):
            if isinstance(combine, str):
                combiner = COMBINERS[combine]
                wide = [part.astype(combiner.accumulator(d).numpy) for part, d in zip(parts, dtypes, strict=True)]
                parts = [
                    combiner.numpy.accumulate(part, axis=0).astype(d.numpy)
                    for part, d in zip(wide, dtypes, strict=True)
                ]
            else:
                step = 1
                while step < parts[0].shape[0]:
                    joined = combine([part[:-step] for part in parts], [part[step:] for part in parts])
                    parts = [np.concatenate([p[:step], j]) for p, j in zip(parts, joined, strict=True)]
                    step *= 2
        parts = [part[::-1] for part in parts] if reverse else parts
        return [np.moveaxis(part, 0, axis) for part in parts]

    def dot(self, a: Handle, b: Handle, accumulator: Handle | None, operand: DType, result: DType) -> Handle:
        wide = np.float32 if result.is_float and result.bits < 32 else result.numpy
        with np.errstate(all="ignore"):
            product = np.matmul(a.astype(wide), b.astype(wide))
            if accumulator is not None:
                product = product + accumulator.astype(wide)
            return product.astype(result.numpy)

    def sort(self, value: Handle, dtype: DType, descending: bool) -> Handle:
        order = np.sort(value.astype(np.float32), axis=-1).astype(value.dtype) if value.dtype in NARROW else None
        ordered = np.sort(value, axis=-1) if order is None else order
        return ordered[..., ::-1] if descending else ordered

    def histogram(self, value: Handle, dtype: DType, bins: int, mask: Handle | None) -> Handle:
        counted = value if mask is None else value[mask]
        counted = counted[(counted >= 0) & (counted < bins)]
        return np.bincount(counted.astype(np.int64), minlength=bins).astype(np.int32)

    # -- memory ----------------------------------------------------------------------------------------------------

    def advance(self, pointer: Handle, offset: Handle, offset_dtype: DType, element: DType) -> Handle:
        return Pointers(pointer.address + offset.astype(np.int64) * element.bytes, pointer.region)

    def pointer_to_int(self, pointer: Handle, element: DType) -> Handle:
        return pointer.address

    def int_to_pointer(self, address: Handle, element: DType) -> Handle:
        return Pointers(np.asarray(address, np.int64), np.asarray(UNKNOWN, np.int32))

    def select_pointer(self, condition: Handle, yes: Handle, no: Handle, element: DType) -> Handle:
        where: Any = np.where
        return Pointers(where(condition, yes.address, no.address), where(condition, yes.region, no.region))

    def load(self, pointer: Handle, mask: Handle | None, other: Handle | None, element: DType) -> Handle:
        value = self.memory.load(pointer, mask, element)
        return value if mask is None or other is None else np.where(mask, value, other)

    def store(self, pointer: Handle, value: Handle, mask: Handle | None, element: DType) -> None:
        self.memory.store(pointer, value, mask)

    def atomic(
        self,
        kind: str,
        pointer: Handle,
        value: Handle,
        mask: Handle | None,
        element: DType,
        expected: Handle | None = None,
        relaxed: bool = False,
    ) -> Handle:
        operand = np.ascontiguousarray(value).reshape(-1)
        wanted = None if expected is None else np.ascontiguousarray(expected).reshape(-1)

        def change(old: Array, lane: Array) -> Array:
            with np.errstate(all="ignore"):
                if kind == "cas":
                    assert wanted is not None
                    return np.where(old == wanted[lane], operand[lane], old)
                return operand[lane] if kind == "xchg" else FUNCTIONS[kind].numpy(old, operand[lane])

        return self.memory.update(pointer, mask, element, change)

    # -- control flow ----------------------------------------------------------------------------------------------

    def for_loop(
        self,
        lower: Handle,
        upper: Handle,
        step: Handle,
        dtype: DType,
        carried: Sequence[Handle],
        body: Callable[[Handle, list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        values = list(carried)
        for i in range(int(lower), int(upper), int(step)):
            values = list(body(np.asarray(i, dtype.numpy), values))
        return values

    def while_loop(
        self,
        carried: Sequence[Handle],
        condition: Callable[[list[Handle]], Handle],
        body: Callable[[list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        values = list(carried)
        while bool(condition(values)):
            values = list(body(values))
        return values

    def branch(
        self, condition: Handle, then: Callable[[], Sequence[Handle]], otherwise: Callable[[], Sequence[Handle]]
    ) -> list[Handle]:
        return list(then() if bool(condition) else otherwise())

    # -- the author's eyes -----------------------------------------------------------------------------------------

    def shape_of(self, value: Handle) -> Shape:
        return tuple(value.shape)

    def known(self, value: Handle) -> float | int | bool | None:
        return value.address.item() if isinstance(value, Pointers) else value.item()

    def show(self, value: Handle) -> str | None:
        return str(value.address if isinstance(value, Pointers) else value)

    def print_values(self, prefix: str, values: Sequence[Handle], dtypes: Sequence[DType], hexadecimal: bool) -> None:
        program = f"pid ({', '.join(map(str, self.program))})"
        if not values:
            print(f"{program}{prefix}")
        for number, value in enumerate(values):
            operand = f"(operand {number}) " if len(values) > 1 else ""
            numbers = value.address if isinstance(value, Pointers) else value
            for index in itertools.product(*map(range, numbers.shape)):
                shown = _shown(numbers[index], hexadecimal)
                print(f"{program} idx ({', '.join(map(str, index))}){prefix}{operand}{shown}")

    def hint(self, value: Handle, name: str, numbers: Sequence[int]) -> None:
        return

    def assume(self, condition: Handle) -> None:
        return

    def check(self, condition: Handle, message: str, location: str, mask: Handle | None) -> None:
        holds = np.all(condition if mask is None else condition | ~mask)
        if not holds:
            raise DeviceAssertError(
                f"device assertion failed: {message}" if message else "device assertion failed",
                location=location or self.location or None,
                hint=f"in program {self.program} of the grid {self.memory.grid}",
            )

    def at(self, location: str) -> None:
        self.location = location


def _shown(number: Any, hexadecimal: bool) -> str:
    if not hexadecimal:
        return str(number)
    raw = np.asarray(number).view(np.dtype(f"u{number.dtype.itemsize}"))
    return f"0x{int(raw):0{2 * number.dtype.itemsize}x}"


def _towards_zero(value: Array, target: DType) -> Array:
    """A narrower float, rounded towards zero: where rounding to nearest went up, the number before.

    That of infinity, and of the NaN that is too large a number in a type without infinity, is the largest.
    """
    nearest, exact = value.astype(target.numpy), value.astype(np.float64)
    bits = nearest.view(np.dtype(f"u{target.bytes}"))
    rounded = nearest.astype(np.float64)
    beyond = (np.abs(rounded) > np.abs(exact)) & np.isfinite(exact) | np.isnan(rounded) & np.isfinite(exact)
    return np.where(beyond, bits - 1, bits).astype(bits.dtype).view(target.numpy)
