"""Loads, stores and atomics through pointers, one or a tile of them."""

from __future__ import annotations

from typing import Any, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.block_pointers import block_pointer
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import broadcast_all, like, spread, to_tensor
from weft.frontends.triton.language.types import dtype, pointer_type
from weft.frontends.triton.language.values import member, tensor

LOAD_MODIFIERS = ("", ".ca", ".cg", ".cv")
STORE_MODIFIERS = ("", ".wb", ".cg", ".cs", ".wt")
EVICTION = ("", "evict_last", "evict_first")
PADDING = ("", "zero", "nan")
ORDERS = ("", "acquire", "release", "acq_rel", "relaxed")
SCOPES = ("", "gpu", "cta", "sys")


def one_of(option: Any, allowed: tuple[str, ...], what: str) -> str:
    """An option with a name, checked."""
    option = unwrap(option) or ""
    if option not in allowed:
        names = ", ".join(repr(name) for name in allowed if name)
        raise KernelValueError(f"{what} {option} not supported", hint=f"use one of {names}")
    return option


def pointee(pointer: Any, what: str) -> dtype:
    """The type of the elements that pointers point to."""
    if not isinstance(pointer, tensor) or not isinstance(pointer.dtype, pointer_type):
        shown = pointer.type if isinstance(pointer, tensor) else type(pointer).__name__
        raise KernelTypeError(
            f"Unsupported ptr type {shown} in `tl.{what}`", hint="give it a pointer: pointer + offsets"
        )
    return pointer.dtype.element_ty


def _checked_mask(mask: Any, what: str) -> tensor | None:
    mask = unwrap(mask)
    if mask is None:
        return None
    mask = to_tensor(mask)
    if not mask.dtype.is_bool():
        raise KernelTypeError(f"Mask must have boolean scalar type in tl.{what}, got {mask}", hint="compare: x < n")
    return mask


def _fits_scalar(pointer: tensor, others: dict[str, tensor | None]) -> None:
    for name, other in others.items():
        if not pointer.sides and other is not None and other.sides:
            raise KernelShapeError(
                f"{name} argument cannot be block type if pointer argument is not a block: {other}, {pointer}",
                hint="add tl.arange(...) to the pointer",
            )


def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: Any = "",
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    volatile: Any = False,
) -> tensor:
    """What pointers point to. Where the mask is false nothing is read, and the value is `other`."""
    one_of(cache_modifier, LOAD_MODIFIERS, "Cache modifier")
    one_of(eviction_policy, EVICTION, "Eviction policy")
    padding = one_of(padding_option, PADDING, "Padding option")
    if isinstance(pointer, block_pointer):
        if unwrap(mask) is not None or unwrap(other) is not None:
            raise KernelValueError("`mask` and `other` arguments cannot be specified for loading block pointers")
        pointers, inside, fill = pointer.access(boundary_check, padding)
        return load(pointers, inside, fill if inside is not None else None)
    element = pointee(pointer, "load")
    if unwrap(mask) is None and unwrap(other) is not None:
        raise KernelValueError("`other` cannot be provided without `mask`")
    if padding or unwrap(boundary_check):
        raise KernelValueError(
            "`padding_option` or `boundary_check` argument is not supported for loading a tensor of pointers or a"
            " scalar",
            hint="use block pointers (`tl.make_block_ptr`), or a mask",
        )
    chosen = _checked_mask(mask, "load")
    fill = None if unwrap(other) is None else to_tensor(other)
    _fits_scalar(pointer, {"Mask": chosen, "Other": fill})
    if chosen is not None:
        pointer, chosen = broadcast_all(pointer, chosen)
    if fill is not None:
        fill = converted(fill, element, None)
        pointer, fill, chosen = broadcast_all(pointer, fill, cast(tensor, chosen))
    mask_handle = None if chosen is None else chosen.handle
    fill_handle = None if fill is None else fill.handle
    handle = builder.current.get().load(pointer.handle, mask_handle, fill_handle, element.stored)
    return like(handle, pointer, element)


@member
def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = "",
    eviction_policy: Any = "",
) -> None:
    """Write values to where pointers point, if the mask holds."""
    one_of(cache_modifier, STORE_MODIFIERS, "Cache modifier")
    one_of(eviction_policy, EVICTION, "Eviction policy")
    if isinstance(pointer, block_pointer):
        if unwrap(mask) is not None:
            raise KernelValueError("`mask` and `other` arguments cannot be specified for storing to block pointers")
        pointers, inside, _ = pointer.access(boundary_check, "")
        content = to_tensor(value)
        if content.sides and content.sides != pointer.type.block_type.shape:
            raise KernelShapeError(
                f"Block shape({list(pointer.type.block_type.shape)}) and value shape({list(content.sides)}) mismatch"
            )
        if content.sides and content.dtype != pointer.type.block_type.scalar:
            raise KernelTypeError(
                f"Block element type({pointer.type.block_type.scalar}) and value element type({content.dtype})"
                " mismatch",
                hint="cast the value with .to(...)",
            )
        return store(pointers, content, inside)
    element = pointee(pointer, "store")
    if pointer.dtype.is_const():
        raise KernelValueError("Cannot store to a constant pointer")
    if unwrap(boundary_check):
        raise KernelValueError(
            "`boundary_check` argument is not supported for storing a tensor of pointers or storing a scalar",
            hint="use block pointers (`tl.make_block_ptr`), or a mask",
        )
    content, chosen = to_tensor(value), _checked_mask(mask, "store")
    _fits_scalar(pointer, {"Value": content, "Mask": chosen})
    sides = pointer.sides
    if chosen is None:
        pointer, content = broadcast_all(pointer, content)
    else:
        pointer, content, chosen = broadcast_all(pointer, content, chosen)
    if sides and pointer.sides != sides:
        raise KernelShapeError(f"Expected pointer argument to have shape {list(pointer.sides)} but got {list(sides)}")
    handle = None if chosen is None else chosen.handle
    return builder.current.get().store(pointer.handle, converted(content, element, None).handle, handle, element.stored)


def _atomic(kind: str, pointer: Any, val: Any, mask: Any, sem: Any, scope: Any) -> tensor:
    one_of(sem, ORDERS, "Memory semantic")
    one_of(scope, SCOPES, "Memory scope")
    name = f"atomic_{kind}"
    element = pointee(pointer, name)
    if pointer.dtype.is_const():
        raise KernelValueError("Cannot store to a constant pointer")
    if element.primitive_bitwidth < 16 or element in (types.int16, types.uint16):
        raise KernelTypeError(f"{name} does not support {element}", hint="atomics work on 32 and 64 bits")
    narrow = element in (types.float16, types.bfloat16) and kind != "add"
    if narrow or (element.is_floating() and kind in ("and", "or", "xor")):
        raise KernelTypeError(f"{name} does not support {element}")
    chosen = _checked_mask(mask, name)
    value = converted(to_tensor(val), element, None)
    _fits_scalar(pointer, {"Value": value, "Mask": chosen})
    value = spread(value, pointer.sides)
    chosen = None if chosen is None else spread(chosen, pointer.sides)
    handle = builder.current.get().atomic(
        kind,
        pointer.handle,
        value.handle,
        None if chosen is None else chosen.handle,
        element.stored,
        relaxed=unwrap(sem) == "relaxed",
    )
    return like(handle, pointer, element)


@member
def atomic_add(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Add to what pointers point to; gives what was there."""
    return _atomic("add", pointer, val, mask, sem, scope)


@member
def atomic_max(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Replace by the larger; gives what was there."""
    return _atomic("max", pointer, val, mask, sem, scope)


@member
def atomic_min(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Replace by the smaller; gives what was there."""
    return _atomic("min", pointer, val, mask, sem, scope)


@member
def atomic_and(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Keep the bits that are set in both; gives what was there."""
    return _atomic("and", pointer, val, mask, sem, scope)


@member
def atomic_or(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Set bits; gives what was there."""
    return _atomic("or", pointer, val, mask, sem, scope)


@member
def atomic_xor(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Flip bits; gives what was there."""
    return _atomic("xor", pointer, val, mask, sem, scope)


@member
def atomic_xchg(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Replace; gives what was there."""
    return _atomic("xchg", pointer, val, mask, sem, scope)


@member
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> tensor:
    """Replace where what is there equals `cmp`; gives what was there."""
    one_of(sem, ORDERS, "Memory semantic")
    one_of(scope, SCOPES, "Memory scope")
    element = pointee(pointer, "atomic_cas")
    if element.primitive_bitwidth not in (16, 32, 64):
        raise KernelTypeError(f"atomic_cas only supports elements with width {{16, 32, 64}}, got {element}")
    expected = spread(converted(to_tensor(cmp), element, None), pointer.sides)
    value = spread(converted(to_tensor(val), element, None), pointer.sides)
    relaxed = unwrap(sem) == "relaxed"
    handle = builder.current.get().atomic(
        "cas", pointer.handle, value.handle, None, element.stored, expected.handle, relaxed
    )
    return like(handle, pointer, element)
