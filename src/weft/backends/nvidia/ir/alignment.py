"""How memory is accessed: along which axis a tile's elements lie side by side, and how many of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias, cast

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.expr import Atom, Size
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile import pointer_ops
from weft.tile.axis_facts import ALIGNED, DIVISORS, AxisFacts, Neighbours, neighbours_of

WIDEST = 16
"""The bytes that one access of a thread moves at most."""
UNALIGNED = "nvidia.unaligned"
"""On an access to rows that begin anywhere."""


def divisor_of(size: Size, operands: Sequence[SSAValue] = ()) -> int:
    """A number that divides an expression whatever its symbols are; 0 is divided by all.

    Of `operands`, which d0, d1, ... stand for, the variables of loops go by known steps.
    """
    if isinstance(size, int):
        return abs(size)
    total = 0
    for monomial, coefficient in size.terms:
        factor = abs(coefficient)
        for atom in monomial:
            factor *= _atom_divisor(atom, operands)
        total = gcd(total, factor)
    return total


def _atom_divisor(atom: Atom, operands: Sequence[SSAValue]) -> int:
    if atom.kind in ("min", "max"):
        return gcd(*(divisor_of(arg, operands) for arg in atom.args)) or 1
    if atom.kind != "symbol" or not operands:
        return 1
    value = operands[int(atom.name[1:])]
    if (argument := argument_of(value)) is not None:
        return argument_divisor(argument)
    loop = value.owner.parent_op() if isinstance(value, BlockArgument) and value.index == 0 else None
    if not isinstance(loop, tile.ForOp):
        return 1
    lower, _, step = loop.bounds.data
    return gcd(divisor_of(lower), divisor_of(step)) or 1


def argument_of(index: SSAValue) -> BlockArgument | None:
    """The scalar of a written kernel that an index is."""
    value = index.op.value if isinstance(index, OpResult) and isinstance(index.op, pointer_ops.IndexOp) else None
    if isinstance(value, OpResult) and isinstance(value.op, tile.MapOp) and value.op.function.data == "cast":
        value = value.op.args[0]
    return value if isinstance(value, BlockArgument) and isinstance(_kernel_of(value), tile.KernelOp) else None


def argument_divisor(argument: SSAValue) -> int:
    """What an argument of a written kernel is known to be a multiple of."""
    kernel = _kernel_of(argument)
    assert isinstance(argument, BlockArgument) and kernel is not None
    divisors = (
        cast("tuple[int, ...]", from_attribute(kernel.attributes[DIVISORS])) if DIVISORS in kernel.attributes else ()
    )
    return divisors[argument.index] if argument.index < len(divisors) else 1


def _kernel_of(argument: SSAValue) -> Operation | None:
    return argument.owner.parent_op() if isinstance(argument, BlockArgument) else None


@dataclass(frozen=True)
class Access:
    """The axis along which an access runs through memory, and how many elements of it may be moved at once."""

    axis: int | None
    vector: int
    shifted: bool = False
    """Whether they may lie across a multiple of `WIDEST` bytes."""
    ragged: bool = False
    """Whether some may lie beyond the end of a row."""


def access_of(op: tile.LoadOp | tile.StoreOp, shape: tuple[int, ...]) -> Access:
    """What a strided access allows. Memory begins at a multiple of `WIDEST` bytes."""
    dtype = pointer_dtype(op)
    strides = op.strides.data
    axes = [axis for axis, stride in enumerate(strides) if stride == 1 and shape[axis] > 1]
    if not axes:
        return Access(None, 1)
    axis = max(axes, key=lambda a: shape[a])
    step = divisor_of(op.offset.data[0], op.indices)
    for other, stride in enumerate(strides):
        if other != axis and shape[other] > 1:
            step = gcd(step, divisor_of(stride, op.indices))
    most = WIDEST // dtype.bytes
    vector = _power(gcd(step, divisor_of(op.extents.data[axis], op.indices)), most)
    if UNALIGNED in op.attributes and vector < most:
        return Access(axis, most, shifted=_power(step, most) < most, ragged=True)
    return Access(axis, vector)


def _power(step: int, most: int) -> int:
    """The largest power of two that divides a step, at most `most`."""
    return min(most, step & -step) if step else most


ComputedAccess: TypeAlias = tile.GatherOp | tile.ScatterOp | pointer_ops.AtomicOp


def computed_access(facts: AxisFacts, op: ComputedAccess) -> Neighbours:
    """What an access to computed places allows."""
    told = op.attributes.get(ALIGNED)
    aligned = told.value.data if isinstance(told, IntegerAttr) else 1
    return neighbours_of(facts, op.pointer, op.offsets, op.mask, WIDEST, aligned)


def pointer_dtype(op: tile.LoadOp | tile.StoreOp | tile.NumberOp | ComputedAccess) -> DType:
    type_ = op.pointer.type
    assert isinstance(type_, tile.PointerType)
    return type_.dtype
