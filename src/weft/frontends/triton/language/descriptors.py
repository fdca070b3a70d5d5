"""Tensor descriptors: a tensor in memory that is read and written by blocks; what lies outside is masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.block_pointers import as_list, as_scalar, padding_value, places, window
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import base_type, base_value, unwrap
from weft.frontends.triton.language.memory import (
    atomic_add,
    atomic_and,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
    load,
    one_of,
    store,
)
from weft.frontends.triton.language.promotion import constant, to_tensor
from weft.frontends.triton.language.shapes import expand_dims
from weft.frontends.triton.language.types import block_type, check_shape, pointer_type
from weft.frontends.triton.language.values import tensor, tuple


class tensor_descriptor_type(base_type):
    """The type of a descriptor: of what pointer, and the block that it reads and writes."""

    def __init__(self, block_type: block_type, shape_type: Any = None, strides_type: Any = None) -> None:
        self.block_type = block_type
        self.shape_type = shape_type
        self.strides_type = strides_type
        self.padding = "zero"
        self.name = f"tensor_descriptor<{block_type}>"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, tensor_descriptor_type)
        return same and (self.block_type, self.padding) == (other.block_type, other.padding)

    def __hash__(self) -> int:
        return hash(self.name)

    def mangle(self) -> str:
        return f"TD{self.block_type.mangle()}"

    def unflatten(self, handles: list[Handle], cursor: int) -> Any:
        rank = len(self.block_type.shape)
        base = tensor(handles[cursor], pointer_type(self.block_type.element_ty))
        shape = [tensor(handle, types.int32) for handle in handles[cursor + 1 : cursor + 1 + rank]]
        strides = [tensor(handle, types.int64) for handle in handles[cursor + 1 + rank : cursor + 2 * rank]]
        strides.append(constant(1, types.int64))  # as every descriptor has it
        value = tensor_descriptor(base, shape, strides, self.block_type, self.padding)
        return value, cursor + 1 + 2 * rank


class tensor_descriptor(base_value):
    """A tensor in memory, and the shape of the blocks in which it is accessed."""

    def __init__(
        self,
        base: tensor,
        shape: Sequence[tensor],
        strides: Sequence[tensor],
        block_type: block_type,
        padding: str = "zero",
    ) -> None:
        self.base = base
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.padding = padding
        self.type = tensor_descriptor_type(block_type, self.shape.type, self.strides.type)
        self.type.padding = padding

    @property
    def block_type(self) -> block_type:
        return self.type.block_type

    @property
    def block_shape(self) -> Any:
        return list(self.type.block_type.shape)

    @property
    def dtype(self) -> types.dtype:
        return self.type.block_type.element_ty

    def __str__(self) -> str:
        return str(self.type)

    def flatten(self, handles: list[Handle]) -> None:
        for value in (self.base, self.shape, self.strides):
            value.flatten(handles)

    def _access(self, offsets: Any) -> Any:
        starts, sides = as_list(offsets), self.type.block_type.shape
        if len(starts) != len(sides):
            raise KernelShapeError(f"expected {len(sides)} offsets, but got {len(starts)}")
        indices = [
            places(as_scalar(start, types.int32, "offsets"), side, axis, len(sides))
            for axis, (start, side) in enumerate(zip(starts, sides, strict=True))
        ]
        return window(self.base, self.shape.values, self.strides.values, indices, range(len(sides)))

    def _checked(self, value: Any) -> tensor:
        value = to_tensor(value)
        if value.sides != self.type.block_type.shape:
            raise KernelShapeError(f"a block of {self} has the shape {self.block_shape}, the value {list(value.sides)}")
        return value

    def load(self, offsets: Any) -> tensor:
        """The block at the offsets; outside of the tensor it is the padding: zeros, or NaNs."""
        pointers, inside = self._access(offsets)
        return load(pointers, inside, padding_value(self.padding, self.dtype))

    def store(self, offsets: Any, value: Any) -> None:
        """Write a block; what lies outside of the tensor is dropped."""
        content = self._checked(value)
        pointers, inside = self._access(offsets)
        store(pointers, converted(content, self.dtype, None), inside)

    def atomic_add(self, offsets: Any, value: Any) -> None:
        self._atomic(atomic_add, offsets, value)

    def atomic_min(self, offsets: Any, value: Any) -> None:
        self._atomic(atomic_min, offsets, value)

    def atomic_max(self, offsets: Any, value: Any) -> None:
        self._atomic(atomic_max, offsets, value)

    def atomic_and(self, offsets: Any, value: Any) -> None:
        self._atomic(atomic_and, offsets, value)

    def atomic_or(self, offsets: Any, value: Any) -> None:
        self._atomic(atomic_or, offsets, value)

    def atomic_xor(self, offsets: Any, value: Any) -> None:
        self._atomic(atomic_xor, offsets, value)

    def _atomic(self, function: Any, offsets: Any, value: Any) -> None:
        content = self._checked(value)
        pointers, inside = self._access(offsets)
        function(pointers, content, inside)

    def _rows(self, name: str, args: Sequence[Any]) -> Any:
        """Pointers to rows at a list of indices, and the mask of those inside."""
        if len(args) != 2:
            raise KernelValueError(f"descriptor {name} only supports 2D indexing, but got {len(args)}")
        rows, sides = to_tensor(args[0]), self.type.block_type.shape
        if len(sides) != 2 or sides[0] != 1:
            raise KernelShapeError(f"descriptor {name} needs a block of 1 row, but got {list(sides)}")
        if len(rows.sides) != 1:
            raise KernelShapeError(f"x offsets must be 1D, but got {list(rows.sides)}")
        if rows.sides[0] < 8:
            raise KernelShapeError(f"descriptor {name} must have at least 8 rows, but got {list(rows.sides)}")
        least = 32 // self.dtype.primitive_bitwidth * 8
        if sides[1] < least:
            raise KernelShapeError(
                f"descriptor {name} of {self.dtype} must have at least {least} columns, but got {sides[1]}"
            )
        down = expand_dims(converted(rows, types.int64, None), 1)
        across = places(as_scalar(args[1], types.int32, "offsets"), sides[1], 1, 2)
        return window(self.base, self.shape.values, self.strides.values, [down, across], (0, 1))

    def gather(self, *args: Any) -> tensor:
        """Parts of the rows at a list of indices."""
        pointers, inside = self._rows("gather", args)
        return load(pointers, inside, padding_value(self.padding, self.dtype))

    def scatter(self, value: Any, *args: Any) -> None:
        """Write parts of the rows at a list of indices."""
        pointers, inside = self._rows("scatter", args)
        store(pointers, converted(to_tensor(value), self.dtype, None), inside)


def make_tensor_descriptor(
    base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: Any = "zero"
) -> tensor_descriptor:
    """A descriptor of the tensor of a shape and strides at a pointer, accessed by blocks."""
    base, sizes, steps = to_tensor(base), as_list(shape), as_list(strides)
    if not isinstance(base.dtype, pointer_type) or base.sides:
        raise KernelTypeError(f"a descriptor is made of a pointer, got {base}")
    rank = len(sizes)
    if not 1 <= rank <= 5:
        raise KernelShapeError(f"Expected 1 <= ndim <= 5 but got {rank} dimensions")
    if len(steps) != rank:
        raise KernelShapeError(f"Expected {rank} strides but got {len(steps)}")
    sides = check_shape(as_list(block_shape))
    if len(sides) != rank:
        raise KernelShapeError(f"Expected block_shape to have {rank} dimensions but got {len(sides)}")
    element = base.dtype.element_ty
    if sides[-1] * (element.primitive_bitwidth // 8) < 16:
        raise KernelShapeError(
            "Descriptor block shape must have at least 16 bytes in the last dimension, but got"
            f" {sides[-1]} * {element.primitive_bitwidth // 8} = {sides[-1] * (element.primitive_bitwidth // 8)} bytes"
        )
    if unwrap(steps[-1]) != 1:
        raise KernelValueError(f"Tensor descriptor last dim must be 1 but got {steps[-1]}")
    padding = one_of(padding_option, ("zero", "nan"), "Padding option")
    padding_value(padding, element)
    return tensor_descriptor(
        base,
        [as_scalar(size, types.int32, "shape") for size in sizes],
        [as_scalar(step, types.int64, "strides") for step in steps],
        block_type(element, sides),
        padding,
    )


def load_tensor_descriptor(desc: tensor_descriptor, offsets: Any) -> tensor:
    """The block at the offsets."""
    return desc.load(offsets)


def store_tensor_descriptor(desc: tensor_descriptor, offsets: Any, value: Any) -> None:
    """Write a block."""
    desc.store(offsets, value)


tensor_descriptor_base = tensor_descriptor
tensor_descriptor_base_type = tensor_descriptor_type
