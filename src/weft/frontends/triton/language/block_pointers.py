"""Block pointers: a window onto a tensor in memory, which moves. Made of plain pointers and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import base_type, base_value, unwrap
from weft.frontends.triton.language.promotion import constant, to_tensor
from weft.frontends.triton.language.shapes import arange, expand_dims, items
from weft.frontends.triton.language.types import block_type, check_shape, dtype, pointer_type
from weft.frontends.triton.language.values import tensor


def as_list(values: Any) -> list[Any]:
    """One value or several, unwrapped, as a list."""
    return items([values])


def as_scalar(value: Any, element: dtype, what: str) -> tensor:
    """A size, stride or offset as a scalar of a type."""
    value = unwrap(value)
    if isinstance(value, tensor):
        if value.sides or not value.dtype.is_int():
            raise KernelTypeError(f"expected an integer scalar in {what}, got {value}")
        return converted(value, element, None)
    if not isinstance(value, int):
        raise KernelTypeError(f"unsupported element type in {what}: {type(value).__name__}")
    if not element.get_int_min_value() <= value <= element.get_int_max_value():
        raise KernelValueError(f"{value} in {what} does not fit into {element}")
    return constant(value, element)


def places(offset: tensor, side: int, axis: int, rank: int) -> tensor:
    """The indices that a window covers along an axis, as a tile with one side that is not 1."""
    index = converted(offset, types.int64, None) + arange(0, side)
    return expand_dims(index, [i for i in range(rank) if i != axis]) if rank > 1 else index


def window(
    base: tensor, sizes: Sequence[tensor], strides: Sequence[tensor], indices: Sequence[tensor], checked: Sequence[int]
) -> Any:
    """Pointers to a window, and a mask of what lies inside of the tensor along the checked axes."""
    pointers: tensor = base
    inside: tensor | None = None
    for axis, (size, stride, index) in enumerate(zip(sizes, strides, indices, strict=True)):
        pointers = pointers + index * stride
        if axis in checked:
            fits = (index >= constant(0, types.int64)) & (index < size)
            inside = fits if inside is None else inside & fits
    return pointers, inside


def padding_value(padding: str, element: dtype) -> float | int:
    """What is read beyond the edge."""
    if padding == "nan":
        if element.is_int():
            raise KernelValueError(f"Padding option `nan` is not supported for integer blocks: {element}")
        return float("nan")
    return 0


class block_pointer_type(base_type):
    """The type of a block pointer; `element_ty` is the type of the tile it points to."""

    def __init__(self, pointer: pointer_type, tile: block_type) -> None:
        self.pointer = pointer
        self.block_type = tile
        self.name = f"pointer<{tile}>"

    @property
    def element_ty(self) -> block_type:
        return self.block_type

    @property
    def scalar(self) -> block_pointer_type:
        return self

    def is_ptr(self) -> bool:
        return True

    def is_block(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, block_pointer_type)
        return same and (self.pointer, self.block_type) == (other.pointer, other.block_type)

    def __hash__(self) -> int:
        return hash(self.name)

    def mangle(self) -> str:
        return f"P{self.block_type.mangle()}"

    def unflatten(self, handles: list[Handle], cursor: int) -> Any:
        rank = len(self.block_type.shape)
        base = tensor(handles[cursor], self.pointer)
        groups: list[list[tensor]] = []
        cursor += 1
        for element in (types.int64, types.int64, types.int32):
            groups.append([tensor(handle, element) for handle in handles[cursor : cursor + rank]])
            cursor += rank
        return block_pointer(base, groups[0], groups[1], groups[2], self), cursor


class block_pointer(base_value):
    """A window of a fixed shape onto a tensor in memory."""

    def __init__(
        self,
        base: tensor,
        sizes: Sequence[tensor],
        strides: Sequence[tensor],
        offsets: Sequence[tensor],
        type: block_pointer_type,
    ) -> None:
        self.base = base
        self.sizes = list(sizes)
        self.strides = list(strides)
        self.offsets = list(offsets)
        self.type = type

    @property
    def dtype(self) -> block_pointer_type:
        return self.type

    def flatten(self, handles: list[Handle]) -> None:
        for value in (self.base, *self.sizes, *self.strides, *self.offsets):
            value.flatten(handles)

    def advance(self, offsets: Any) -> block_pointer:
        return advance(self, offsets)

    def access(self, boundary_check: Any, padding: str) -> Any:
        """Pointers, the mask of what lies inside (None if nothing is checked), and what is read outside."""
        sides = self.type.block_type.shape
        checked = as_list(boundary_check) if unwrap(boundary_check) not in ((), None) else []
        for axis in checked:
            if not isinstance(axis, int) or not 0 <= axis < len(sides):
                raise KernelValueError(f"boundary_check names axis {axis} of a block of {len(sides)} axes")
        if len(set(checked)) != len(checked):
            raise KernelValueError(f"Duplicate dimension in `boundary_check`: {checked}")
        fill = padding_value(padding, self.type.block_type.scalar)
        indices = [
            places(offset, side, axis, len(sides))
            for axis, (offset, side) in enumerate(zip(self.offsets, sides, strict=True))
        ]
        pointers, inside = window(self.base, self.sizes, self.strides, indices, checked)
        return pointers, inside, fill


def make_block_ptr(base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any) -> block_pointer:
    """A window of `block_shape` at `offsets` in the tensor of `shape` and `strides` at `base`."""
    base = to_tensor(base)
    if not isinstance(base.dtype, pointer_type) or base.sides:
        raise KernelTypeError(
            f"Expected `base` to be a pointer type (but not a block pointer type or others), got {base}"
        )
    if base.dtype.element_ty.is_bool():
        base = converted(base, pointer_type(types.int8, base.dtype.address_space), None)
    sides = check_shape(as_list(block_shape))
    groups = [as_list(shape), as_list(strides), as_list(offsets), as_list(order)]
    if any(len(group) != len(sides) for group in groups):
        raise KernelShapeError(
            "Expected shape/strides/offsets/block_shape to have the same length, got "
            + ", ".join(str(len(group)) for group in (*groups[:3], sides))
        )
    if sorted(groups[3]) != list(range(len(sides))):
        raise KernelValueError(f"Expected a permutation of (0, 1, ..., len(order)-1) in order, got {groups[3]}")
    return block_pointer(
        base,
        [as_scalar(size, types.int64, "shape") for size in groups[0]],
        [as_scalar(stride, types.int64, "strides") for stride in groups[1]],
        [_offset(offset) for offset in groups[2]],
        block_pointer_type(_pointer_of(base), block_type(_pointer_of(base).element_ty, sides)),
    )


def _pointer_of(base: tensor) -> pointer_type:
    assert isinstance(base.dtype, pointer_type)
    return base.dtype


def _offset(offset: Any) -> tensor:
    if isinstance(offset, tensor) and offset.dtype.int_bitwidth == 64:
        raise KernelTypeError(
            "Block pointers only support 32 bit `offsets/block_shape`, got int64",
            hint="add a `.to(tl.int32)` or use regular indexing for 64 bit support",
        )
    return as_scalar(offset, types.int32, "offsets")


def advance(base: Any, offsets: Any) -> block_pointer:
    """The window moved on by a number of elements along each axis."""
    steps = as_list(offsets)
    if not isinstance(base, block_pointer):
        raise KernelTypeError(f"tl.advance moves block pointers, got {base}", hint="add an integer to a pointer")
    if len(steps) != len(base.offsets):
        raise KernelShapeError(f"tl.advance takes {len(base.offsets)} offsets, got {len(steps)}")
    moved = [offset + _offset(step) for offset, step in zip(base.offsets, steps, strict=True)]
    return block_pointer(base.base, base.sizes, base.strides, moved, base.type)
