"""Tiles as parts of tensors: what the copy engine must know to move one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import BlockArgument, SSAValue

from weft.backends.nvidia.alignment import divisor_of, pointer_dtype
from weft.backends.nvidia.code import TensorMap
from weft.ir.expr import Size, floordiv, substitute, symbol
from weft.tile import dialect as tile

_ENGINE = 16
"""What the copy engine asks addresses and strides to be multiples of, in bytes."""
_UNBOUNDED = 1 << 31


@dataclass(frozen=True)
class Part:
    """A tile of two axes as a part of a tensor of two or three; `inner` is the one that runs through memory.

    Sizes and strides are over the kernel's symbols, coordinates over the op's index operands; the innermost are first.
    """

    argument: int
    dtype: str
    inner: int
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    coordinates: tuple[Size, ...]

    def map(self, box: tuple[int, int]) -> TensorMap:
        """The tensor as the copy engine sees it, in boxes of two axes."""
        ones = (1,) * (len(self.sizes) - 2)
        return TensorMap(self.argument, self.dtype, self.sizes, self.strides, (*box, *ones))


def part_of(kernel: tile.KernelOp, op: tile.LoadOp | tile.StoreOp, shape: Sequence[int]) -> Part | None:
    """What an access moves, if the copy engine can: narrow elements of an aligned tensor whose sides are known."""
    dtype = pointer_dtype(op)
    if op.sides is None or op.starts is None or dtype.bytes > 2 or dtype.bits < 8 or len(shape) != 2:
        return None
    strides = op.strides.data
    inner = next((axis for axis in (1, 0) if strides[axis] == 1), None)
    if inner is None or strides[1 - inner] == 0:
        return None
    rest = op.offset.data[0] - sum((s * t for s, t in zip(op.starts.data, strides, strict=True)), start=0)
    pitch = strides[1 - inner]
    if any(divisor_of(step) * dtype.bytes % _ENGINE for step in (pitch, rest)):
        return None
    sizes, pitches = [op.sides.data[inner], op.sides.data[1 - inner]], [pitch]
    coordinates = [op.starts.data[inner], op.starts.data[1 - inner]]
    if rest != 0:  # which matrix of several
        sizes.append(_UNBOUNDED)
        pitches.append(divisor_of(rest))
        coordinates.append(floordiv(rest, divisor_of(rest)))
    names = _names(kernel, op.indices)
    named = [substitute(size, names) for size in (*sizes, *pitches)]
    if any(not isinstance(size, int) and size.symbols - set(kernel.size_names) for size in named):
        return None
    return Part(
        list(kernel.block.args).index(op.pointer),  # type: ignore[arg-type]
        dtype.name,
        inner,
        tuple(named[: len(sizes)]),
        tuple(named[len(sizes) :]),
        tuple(coordinates),
    )


def _names(kernel: tile.KernelOp, indices: Sequence[SSAValue]) -> dict[str, Size]:
    """The kernel's sizes among the operands of an op, by the names that its expressions have for them."""
    sizes = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    named = dict(zip(sizes, kernel.size_names, strict=True))
    return {f"d{i}": symbol(named[o]) for i, o in enumerate(indices) if isinstance(o, BlockArgument) and o in named}
