"""Tiles as parts of tensors: what TMA must know to move one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import BlockArgument, SSAValue

from weft.backends.nvidia.code import TensorMap, argument_name
from weft.backends.nvidia.ir.alignment import argument_divisor, argument_of, divisor_of, pointer_dtype
from weft.ir.expr import Size, floordiv, substitute, symbol
from weft.tile import dialect as tile
from weft.tile.axis_facts import DIVISORS

_TMA_ALIGNMENT = 16
"""What TMA asks addresses and strides to be multiples of, in bytes."""
UNBOUNDED = 1 << 31
"""The side of what has no bounds."""


@dataclass(frozen=True)
class TmaBox:
    """A tile of two axes as a part of a tensor of two or three; `inner` is the one that runs through memory.

    Sizes and strides are over the kernel's symbols, coordinates over the op's index operands; the innermost are first.
    """

    argument: int
    dtype: str
    inner: int
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    coordinates: tuple[Size, ...]

    @property
    def is_known(self) -> bool:
        """Whether columns and rows are known before the kernel is launched."""
        return isinstance(self.sizes[0], int) and isinstance(self.strides[0], int)

    def map(self, box: tuple[int, int]) -> TensorMap:
        """The tensor as TMA sees it, in boxes of two axes."""
        ones = (1,) * (len(self.sizes) - 2)
        return TensorMap(self.argument, self.dtype, self.sizes, self.strides, (*box, *ones))


def tma_box_of(
    kernel: tile.KernelOp, op: tile.LoadOp | tile.StoreOp, shape: Sequence[int], piece: int = 0
) -> TmaBox | None:
    """What an access moves, if TMA can: narrow elements of an aligned tensor whose sides are known.

    Of what is in pieces, that is one of them.
    """
    dtype = pointer_dtype(op)
    if op.sides is None or op.starts is None or dtype.bytes > 2 or dtype.bits < 8 or len(shape) != 2:
        return None
    strides = op.strides.data
    inner = next((axis for axis in (1, 0) if strides[axis] == 1), None)
    if inner is None or strides[1 - inner] == 0:
        return None
    rest = op.offset.data[piece] - sum((s * t for s, t in zip(op.starts.data, strides, strict=True)), start=0)
    pitch = strides[1 - inner]
    if any(divisor_of(step, op.indices) * dtype.bytes % _TMA_ALIGNMENT for step in (pitch, rest)):
        return None
    if DIVISORS in kernel.attributes and argument_divisor(op.pointer) % _TMA_ALIGNMENT:
        return None
    sizes, pitches = [op.sides.data[inner], op.sides.data[1 - inner]], [pitch]
    coordinates = [op.starts.data[inner], op.starts.data[1 - inner]]
    if rest != 0:  # which matrix of several
        sizes.append(UNBOUNDED)
        apart = divisor_of(rest)
        apart = apart if apart * dtype.bytes % _TMA_ALIGNMENT == 0 else _TMA_ALIGNMENT // dtype.bytes
        pitches.append(apart)
        coordinates.append(floordiv(rest, apart))
    names = _names(kernel, op.indices)
    named = [substitute(size, names) for size in (*sizes, *pitches)]
    known = {*kernel.size_names, *(argument_name(number) for number in range(len(kernel.block.args)))}
    if any(not isinstance(size, int) and size.symbols - known for size in named):
        return None
    return TmaBox(
        list(kernel.block.args).index(op.pointer),  # type: ignore[arg-type]
        dtype.name,
        inner,
        tuple(named[: len(sizes)]),
        tuple(named[len(sizes) :]),
        tuple(coordinates),
    )


def lines_of(kernel: tile.KernelOp, op: tile.StoreOp) -> tuple[Size, ...] | None:
    """The matrix that a store writes a part of, if its rows run through memory, which may begin anywhere.

    That is its columns and rows, the elements from one row to the next and before the first one, and the number of
    elements, 1 or 2, at multiples of which the lines of all tiles begin.
    """
    if op.sides is None or op.starts is None or op.strides.data[1] != 1:
        return None
    (down, across), pitch, starts = op.sides.data, op.strides.data[0], op.starts.data
    rest = op.offset.data[0] - starts[0] * pitch - starts[1]
    begun = [divisor_of(size, op.indices) for size in (pitch, rest, starts[1])]
    if DIVISORS in kernel.attributes:
        begun.append(argument_divisor(op.pointer) // pointer_dtype(op).bytes)
    return across, down, pitch, rest, 1 if any(step % 2 for step in begun) else 2


def _names(kernel: tile.KernelOp, indices: Sequence[SSAValue]) -> dict[str, Size]:
    """What is known at launch among the operands of an op, by the names that its expressions have for it."""
    sizes = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    named = dict(zip(sizes, kernel.size_names, strict=True))
    names: dict[str, Size] = {}
    for number, operand in enumerate(indices):
        if isinstance(operand, BlockArgument) and operand in named:
            names[f"d{number}"] = symbol(named[operand])
        elif (argument := argument_of(operand)) is not None:
            names[f"d{number}"] = symbol(argument_name(argument.index))
    return names
