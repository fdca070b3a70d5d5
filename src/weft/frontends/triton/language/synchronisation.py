"""Reads and writes that programs meet by: `atomic_load`, `atomic_store` and `atomic_poll`, which waits for a value."""

from __future__ import annotations

from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelTypeError, KernelValueError, LaunchError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import eq, logical_and, not_
from weft.frontends.triton.language.casting import cast, converted
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.memory import atomic_cas, atomic_or, atomic_xchg, one_of, pointee
from weft.frontends.triton.language.promotion import constant, to_tensor
from weft.frontends.triton.language.types import dtype, pointer_type
from weft.frontends.triton.language.values import member, tensor

_INTEGERS = {16: types.int16, 32: types.int32, 64: types.int64}
_TURN_NS = 100
"""An iteration of waiting takes about as long."""


def _integer_of(pointer: Any, what: str) -> tuple[dtype, dtype]:
    """The type of elements, and the integers of their width."""
    element = pointee(pointer, what)
    bits = element.primitive_bitwidth
    if bits not in _INTEGERS:
        raise KernelTypeError(f"{what} does not support {element}", hint="it takes elements of 16, 32 and 64 bits")
    return element, _INTEGERS[bits]


@member
def atomic_load(pointer: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """What pointers point to, whatever other programs do there at the time; unspecified where the mask is false."""
    one_of(sem, ("", "acquire", "relaxed"), "Memory semantic of atomic_load")
    element, integer = _integer_of(pointer, "atomic_load")
    places = pointer if element == integer else cast(pointer, pointer_type(integer))
    if integer == types.int16:  # there is no other operation on 16 bits; it changes nothing
        if unwrap(mask) is not None:
            raise KernelTypeError("atomic_load of 16 bits takes no mask", hint="use 32 bits")
        bits = atomic_cas(places, 0, 0, sem, scope)
    else:
        bits = atomic_or(places, 0, mask, sem, scope)
    return bits if element == integer else cast(bits, element, bitcast=True)


@member
def atomic_store(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> None:
    """Write values, each as a whole, after all that this program wrote before."""
    one_of(sem, ("", "release", "relaxed"), "Memory semantic of atomic_store")
    atomic_xchg(pointer, val, mask, sem, scope)


@member
def atomic_poll(
    pointer: Any, expected_value: Any, sem: Any = None, scope: Any = None, timeout_ns: Any = None
) -> tensor:
    """Wait until a place holds a value; gives whether it does. `timeout_ns` bounds the iterations of waiting."""
    one_of(sem, ("", "acquire", "relaxed"), "Memory semantic of atomic_poll")
    element, _ = _integer_of(pointer, "atomic_poll")
    limit = unwrap(timeout_ns)
    if not element.is_int() or pointer.sides:
        raise KernelTypeError(f"atomic_poll takes a pointer to one integer of 16, 32 or 64 bits, got {pointer}")
    if isinstance(limit, int) and limit < 0:
        raise KernelValueError("atomic_poll timeout_ns must be non-negative")
    expected = converted(to_tensor(expected_value), element, None)
    build = builder.current.get()

    def look() -> tensor:
        return eq(atomic_load(pointer, None, sem, scope), expected)

    first = look()
    known = build.known(first.handle)
    if known is not None:
        if not known and limit is None:
            raise LaunchError(
                "atomic_poll waits for ever: programs that run as Python run one after the other",
                hint="give timeout_ns, or let an earlier program write the value",
            )
        return first
    turns = (
        constant(1 << 62, types.int64) if limit is None else converted(to_tensor(limit) // _TURN_NS, types.int64, None)
    )

    def waits(carried: list[Handle]) -> Handle:
        return logical_and(not_(tensor(carried[0], types.int1)), tensor(carried[1], types.int64) > 0).handle

    def turn(carried: list[Handle]) -> list[Handle]:
        return [look().handle, (tensor(carried[1], types.int64) - 1).handle]

    return tensor(build.while_loop([first.handle, turns.handle], waits, turn)[0], types.int1)
