"""Types by the short names that signatures use: `*fp32`, `i32`, `tensordesc<fp16[16, 32]>`."""

from __future__ import annotations

from typing import Any, cast

from weft.frontends.triton.language.constants import constexpr_type
from weft.frontends.triton.language.descriptors import tensor_descriptor_type
from weft.frontends.triton.language.types import block_type, dtype, int1, int32, int64, pointer_type, tuple_type


class const:
    """As an annotation: a pointer to what the kernel must not change."""


def str_to_ty(name: Any, c: Any = None) -> Any:
    """The type that a short name stands for; `c` is the value of a constexpr."""
    if isinstance(name, tuple):
        items = cast("tuple[Any, ...]", name)
        return tuple_type([str_to_ty(item, c) for item in items], getattr(items, "_fields", None))
    if name.startswith("*"):
        is_const = name.startswith("*k")
        return pointer_type(str_to_ty(name[2:] if is_const else name[1:], c), const=is_const)
    if name.startswith("tensordesc"):
        element, _, shape = name.split("<")[1].rstrip(">").partition("[")
        sides = [int(side) for side in shape.split("]")[0].split(",")]
        rank = len(sides)
        tile = block_type(str_to_ty(element), sides)
        return tensor_descriptor_type(tile, tuple_type([int32] * rank), tuple_type([int64] * rank))
    if name.startswith("constexpr"):
        return constexpr_type(c)
    if name in ("B", "i1", "u1"):
        return int1
    if name[0] in "iu" and name[1:].isdigit():
        return dtype(f"{'u' if name[0] == 'u' else ''}int{name[1:]}")
    return dtype(name)
